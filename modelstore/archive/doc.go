// Package archive names model archives and opens them safely: from a file, a folder or an URL to a verified, unpacked folder with its
// manifest and its settings.
package archive
