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
)

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
