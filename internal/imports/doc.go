// Package imports checks the import directions of docs/architecture.md against the code; it has tests only.
package imports
