package archive

import "strings"

// location is a model's URL, taken apart as TorchServe does.
type location struct {
	raw    string
	remote bool   // file, http, https, or one of an object store: it is fetched
	base   string // the file's name in the store, "" when the URL ends with a slash
	pin    string // hex digits of the digest that a remote one must have; "" for any
}

// parseLocation takes a URL apart. objects says that models of object stores can be fetched, too; else such a URL names a file of the store, as for
// TorchServe.
func parseLocation(raw string, objects bool) location {
	l := location{raw: raw, base: lastSegment(raw)}
	scheme, _, found := strings.Cut(raw, ":")
	if !found {
		return l
	}
	switch strings.ToLower(scheme) {
	case "http", "https", "file":
		l.remote = strings.HasPrefix(raw[len(scheme):], "://")
	case "s3", "gs", "azblob":
		if l.remote = objects && strings.HasPrefix(raw[len(scheme):], "://"); !l.remote {
			return l
		}
	case "ftp": // Java knows the scheme, so its query does not belong to the name
	default:
		return l
	}
	// The name is neither decoded nor does it hold the query: as Java's URL.getPath gives it.
	rest, fragment, _ := strings.Cut(raw[len(scheme)+1:], "#")
	rest, _, _ = strings.Cut(rest, "?")
	if host, ok := strings.CutPrefix(rest, "//"); ok {
		_, rest, _ = strings.Cut(host, "/")
	}
	l.base = lastSegment(rest)
	if pin, found := strings.CutPrefix(fragment, "sha256="); found && l.remote {
		l.pin = strings.ToLower(pin)
	}
	return l
}

// lastSegment is what follows the last slash or backslash.
func lastSegment(s string) string {
	return s[strings.LastIndexAny(s, `/\`)+1:]
}

// usable says whether the base can be a file's name in the store.
func (l location) usable() bool {
	return l.base != "" && l.base != "." && l.base != ".." && !strings.ContainsRune(l.base, 0)
}

// fileBase is the name that TorchServe gives a start-up model whose archive does not name itself.
func fileBase(raw string) string {
	name := raw[strings.LastIndexByte(raw, '/')+1:]
	if strings.Contains(raw, ".model") || strings.Contains(raw, ".mar") {
		if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
			name = name[:dot]
		}
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		default:
			return '_'
		}
	}, name)
}
