package check

// Code names a kind of finding. It stays the same over versions: scripts and alerts may rely on it.
type Code string

// The codes. Codes tells what each means.
const (
	ArchiveUnusable         Code = "archive_unusable"
	ManifestMissing         Code = "manifest_missing"
	ManifestFileMissing     Code = "manifest_file_missing"
	ManifestValue           Code = "manifest_value"
	HandlerUnnamed          Code = "handler_unnamed"
	HandlerMissing          Code = "handler_missing"
	HandlerNoEntry          Code = "handler_no_entry"
	HandlerAmbiguous        Code = "handler_ambiguous"
	HandlerIncomplete       Code = "handler_incomplete"
	HandlerFunctionIgnored  Code = "handler_function_ignored"
	ModelFileClasses        Code = "model_file_classes"
	LabelsInvalid           Code = "labels_invalid"
	SyntaxError             Code = "syntax_error"
	FileUnreadable          Code = "file_unreadable"
	ImportMissing           Code = "import_missing"
	ImportName              Code = "import_name"
	ImportRelative          Code = "import_relative"
	PythonCrashed           Code = "python_crashed"
	PythonMissing           Code = "python_missing"
	CheckIncomplete         Code = "check_incomplete"
	LibraryMissing          Code = "library_missing"
	LibraryNotSearched      Code = "library_not_searched"
	LibraryVersion          Code = "library_version"
	LibraryArchitecture     Code = "library_architecture"
	LibraryPython           Code = "library_python"
	LibraryCorrupt          Code = "library_corrupt"
	WheelUnfit              Code = "wheel_unfit"
	WheelPython             Code = "wheel_python"
	WheelName               Code = "wheel_name"
	RequirementMalformed    Code = "requirement_malformed"
	RequirementNotInstalled Code = "requirement_not_installed"
	RequirementConflict     Code = "requirement_conflict"
	WeightsFormat           Code = "weights_format"
	WeightsVersion          Code = "weights_version"
	WeightsCorrupt          Code = "weights_corrupt"
	PickleUnsafe            Code = "pickle_unsafe"
	PickleGlobals           Code = "pickle_globals"
	OnnxVersion             Code = "onnx_version"
	OnnxDomain              Code = "onnx_domain"
	OnnxExternalData        Code = "onnx_external_data"
	GitLFSPointer           Code = "git_lfs_pointer"
	ConfigUnreadable        Code = "config_unreadable"
	ConfigUnknownKey        Code = "config_unknown_key"
	ConfigValue             Code = "config_value"
	ConfigContradiction     Code = "config_contradiction"
	ConfigDevices           Code = "config_devices"
	ConfigRefused           Code = "config_refused"
	EnsembleCircle          Code = "ensemble_circle"
	MemoryShort             Code = "memory_short"
	DiskShort               Code = "disk_short"
	PluginProtocol          Code = "plugin_protocol"
)

// Meaning says what a code stands for, in a sentence.
type Meaning struct {
	Code Code
	Text string
}

// Codes lists all the codes, in the order of the documentation.
func Codes() []Meaning {
	return []Meaning{
		{ArchiveUnusable, "The archive cannot be read as what its name says that it is."},
		{ManifestMissing, "There is no MAR-INF/MANIFEST.json: name and handler have to be given when the model is registered."},
		{ManifestFileMissing, "The manifest names a file that the archive does not have."},
		{ManifestValue, "A value of the manifest cannot be used: a runtime, a name or a version."},
		{HandlerUnnamed, "Neither the manifest nor the server's settings name a handler."},
		{HandlerMissing, "The handler's module is neither in the archive nor one of the built-in handlers. Of an ONNX model: the handler is none of those that there are."},
		{HandlerNoEntry, "The handler's module has neither a function nor a class that could answer requests."},
		{HandlerAmbiguous, "The handler's module has several classes that could answer requests."},
		{HandlerIncomplete, "The handler's class lacks `initialize` or `handle`."},
		{HandlerFunctionIgnored, "The handler names a function that its module does not have; a class is used in its place."},
		{ModelFileClasses, "`modelFile` does not define exactly one class, which BaseHandler needs."},
		{LabelsInvalid, "index_to_name.json is not what the handler can read."},
		{SyntaxError, "A Python file of the model does not compile on the target's Python."},
		{FileUnreadable, "A Python file of the model cannot be read."},
		{ImportMissing, "A module is imported that the target's Python does not find."},
		{ImportName, "A name is imported that its module does not have."},
		{ImportRelative, "A relative import in a module that is in no package."},
		{PythonCrashed, "The target's Python crashes when it reads the archive's Python files."},
		{PythonMissing, "The model needs Python, and this machine has none, or none with the package flambeau."},
		{CheckIncomplete, "Something could not be looked at, so there may be more to find."},
		{LibraryMissing, "A shared object needs a library that the loader will not find."},
		{LibraryNotSearched, "A shared object needs a library that the archive has, but not where the loader looks."},
		{LibraryVersion, "A shared object needs a newer version of a library of the machine, such as glibc."},
		{LibraryArchitecture, "A shared object is for another kind of CPU."},
		{LibraryPython, "An extension module is for another version of Python."},
		{LibraryCorrupt, "A shared object is cut off or damaged."},
		{WheelUnfit, "A wheel in the archive is for another Python, system or CPU."},
		{WheelPython, "A wheel in the archive asks for another version of Python (Requires-Python)."},
		{WheelName, "The name of a wheel in the archive is none that pip reads."},
		{RequirementMalformed, "A line of the requirements file is none that pip reads."},
		{RequirementNotInstalled, "A requirement is not installed, and the server does not install requirements."},
		{RequirementConflict, "A requirement asks for another version than is installed, and the server does not install requirements."},
		{WeightsFormat, "The model's file is not of the format that BaseHandler loads it as."},
		{WeightsVersion, "The model's file was written by a newer torch than is installed."},
		{WeightsCorrupt, "The model's file is cut off or damaged."},
		{PickleUnsafe, "A pickle calls what could run any code when it is loaded."},
		{PickleGlobals, "A pickle refers to classes or functions that torch.load refuses by default, or that are not there."},
		{OnnxVersion, "An ONNX model needs a newer ONNX Runtime than is installed."},
		{OnnxDomain, "An ONNX model has operators of a domain that ONNX Runtime does not bring."},
		{OnnxExternalData, "A file with an ONNX model's weights is missing or too short."},
		{GitLFSPointer, "A file is a pointer of Git LFS and not the file itself."},
		{ConfigUnreadable, "The model's configuration file cannot be read as YAML."},
		{ConfigUnknownKey, "A key of the configuration file looks like a misspelt one of the server's."},
		{ConfigValue, "A value of the configuration file is ignored: it is not of the type that is expected."},
		{ConfigContradiction, "Settings of the configuration file contradict each other, so that one of them has no effect."},
		{ConfigDevices, "The configuration file asks for GPUs that this machine does not have."},
		{ConfigRefused, "The configuration file of an ONNX model has a key that there is not, or a value that means nothing; the model is not loaded with it."},
		{EnsembleCircle, "An ensemble is made of itself, directly or by others beside it."},
		{MemoryShort, "The model's weights, once for each worker, are larger than the memory that is left."},
		{DiskShort, "There is no room to unpack a second version beside this one."},
		{PluginProtocol, "A plugin's program speaks another version of the server's protocol, or does not say which."},
	}
}
