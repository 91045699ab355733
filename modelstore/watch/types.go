package watch

import (
	"log/slog"
	"time"
)

// Kind is how an entry has to be opened.
type Kind string

// The kinds of entries.
const (
	Mar     Kind = "mar"     // a zip file named .mar
	Tarball Kind = "tarball" // a tar file compressed with gzip, named .tgz, .tar.gz or .model
	Folder  Kind = "folder"  // an unpacked archive
	ONNX    Kind = "onnx"    // a file NAME.onnx, or a folder with a model.onnx and no manifest
	Plugin  Kind = "plugin"  // a folder with a program that is called as the model, or that its configuration file names, and no manifest
)

// State says whether an entry can be taken.
type State string

// The states of entries.
const (
	Settled    State = "settled"    // it has not changed for long enough, and reads as complete
	Changing   State = "changing"   // it has changed a moment ago, or is being looked at
	Incomplete State = "incomplete" // it stands still, but is only part of a model, is damaged, or cannot be read
)

// Entry is one model of the store, or one version of a model.
type Entry struct {
	// Path is where it lies in the store, with slashes: "resnet.mar", "digits.onnx", "resnet" for a folder, "resnet/2" for a version's folder and
	// all that it holds, be it one archive file, a model.onnx, a plugin or an unpacked archive.
	Path string
	Kind Kind
	// Name and Version are what the layout says, and "" when only the archive can say: "resnet" and "2" for resnet/2, the name for NAME.onnx, for
	// a folder with a model.onnx, and for one with a plugin.
	Name, Version string
	Versioned     bool   // it lies in a folder of versions
	Superseded    bool   // its model's config.pbtxt does not want it served
	Fingerprint   string // changes whenever the content may have changed; the same for the same names, sizes, times and inodes
	Bytes         int64  // of the file, or of all the files of the folder
	State         State
	Reason        string    // why it is changing or incomplete, for people
	Since         time.Time // since when it has this state and this fingerprint
}

// Snapshot is the whole store at one moment, never a difference.
type Snapshot struct {
	At      time.Time
	Began   time.Time // when the reading began that it is of: what had changed by then is in it
	Entries []Entry   // sorted by Path; hidden and temporary files are left out
	// Err says that the store cannot be read: it is gone, not mounted or forbidden. Entries is nil then, which does not mean that it is empty.
	Err error
}

// Options say which folder is watched, and how patient the watcher is.
type Options struct {
	// Root is the model store. It need not exist yet, and may be a link that is changed to lead elsewhere.
	Root string
	// Poll is how often the whole store is read when nothing tells of a change. 0: 30 seconds.
	Poll time.Duration
	// Settle is how long a file must not have changed before it is looked into. 0: 200 milliseconds.
	Settle time.Duration
	// FolderSettle is the same for a folder, and for all that lies in a version's folder. 0: 2 seconds.
	FolderSettle time.Duration
	// Repository reads the config.pbtxt of a model. Nil: it says nothing about the model's folder.
	Repository func(text []byte, model string) Repository
	// Logger is required.
	Logger *slog.Logger
	// Panicked is told of each panic that was contained: the store is then read once more. It must not block. Nil logs it.
	Panicked func(error)
}
