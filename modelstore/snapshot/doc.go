// Package snapshot writes and finds the files in which TorchServe keeps its settings and models from one start to the next.
//
// A file is whole or not there: it grows outside of the folder, where TorchServe would stumble over it, and is moved in. Names are moments, and grow
// even when the clock goes back, since the greatest one is what the next start takes. What the files hold can be read by TorchServe, and what it has
// written can be found here.
package snapshot
