// Package backendv1 is the contract between the server and a backend process: the control messages of backend.proto and
// the constants of the handshake (docs/protocol.md).
package backendv1

// The handshake of go-plugin. A process that finds another cookie was started by hand.
const (
	// ProtocolVersion changes when a backend of the old version can no longer be used.
	ProtocolVersion = 1
	// CookieKey is the environment variable that carries the cookie.
	CookieKey = "FLAMBEAU_PLUGIN"
	// CookieValue is what CookieKey holds in a process that the server started.
	CookieValue = "7c1d5b0e-flambeau-backend"
	// PluginName is the only entry of the plugin set.
	PluginName = "backend"
)

// Environment variables that the server sets for a backend process, beside go-plugin's own.
const (
	// EnvMaxMessageBytes is the largest gRPC message in bytes, for both directions and both ends.
	EnvMaxMessageBytes = "FLAMBEAU_MAX_MESSAGE_BYTES"
	// EnvProtocolVersions is go-plugin's list of the protocol versions that the server speaks.
	EnvProtocolVersions = "PLUGIN_PROTOCOL_VERSIONS"
	// EnvSocketDir is go-plugin's variable for the folder of the socket.
	EnvSocketDir = "PLUGIN_UNIX_SOCKET_DIR"
)

// File descriptors that a backend process is started with.
const (
	// HandshakeFD takes the handshake line and nothing else.
	HandshakeFD = 1
	// StderrFD takes log lines of stderr.
	StderrFD = 2
	// LifelineFD is a pipe that the server keeps open for as long as it lives.
	LifelineFD = 3
	// StdoutFD takes log lines of stdout.
	StdoutFD = 4
	// FramesFD is one end of a pair of unix sockets. Frames go over it where both sides can do so (FeatureSocket).
	FramesFD = 5
)

// FeatureConcurrent is the feature, in the answer to Load, of a backend that runs all the batches that it is sent at the same time. Others run one
// after another.
const FeatureConcurrent = "concurrent"

// FeatureAhead is the feature of a backend that takes a batch while another one runs, so that it can begin with it at once. It need not give the results
// in the order of the batches.
const FeatureAhead = "ahead"

// FeatureSocket is the feature of a backend that gets frames over the socket that LoadRequest.frames_fd offers, and by no Execute stream.
const FeatureSocket = "socket"

// FeatureOIPBinary is the feature of a backend that takes an item's one part "body" as a body of the Open Inference Protocol as it came, with raw
// tensors behind the JSON when the header inference-header-content-length says so, and answers in the same form.
const FeatureOIPBinary = "oip_binary"

// FeatureStreams is the feature of a backend that may answer in pieces.
const FeatureStreams = "streams"

// ProtocolMarker is in every program that handlersdk is linked into: it can be read without running the program. The semicolon ends the number, for
// anything may follow.
const ProtocolMarker = "flambeau-backend-protocol=1;"

// OrphanSignal is what the kernel sends the process at the server's death. It ends a process that does not read the
// lifeline yet. One that does ignores it: it must live long enough to end its children with it.
const OrphanSignal = 62

// MarkerPrefix begins a line on StderrFD or StdoutFD that tells about the lines after it instead of being one.
const MarkerPrefix = '\x1e'

// Marker is the JSON object after MarkerPrefix.
type Marker struct {
	IDs   []string `json:"ids"`   // requests that the following lines belong to; may be empty
	Level string   `json:"level"` // level of the following lines; may be empty
}
