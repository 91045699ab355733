// Package watch says what the model store holds now: it follows the folder and sends whole snapshots of its entries, each with whether it can be
// taken yet.
package watch
