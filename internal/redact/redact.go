// Package redact takes secrets out of URLs before they are written where others read them.
package redact

import (
	"net/url"
	"strings"
)

// Hidden stands in the place of a value that is not told.
const Hidden = "***"

// deepest is how far URLs within parameters of URLs are looked into; what lies deeper is hidden as a whole.
const deepest = 3

// URL is a URL as logs, messages and descriptions may have it: without user name and password, and with the values of those parameters hidden that are
// signatures, tokens or keys by their names. All else, what is no URL among it, stays as it is written.
func URL(raw string) string { return inner(raw, 0) }

// Target is the target of a request, path and query, as logs may have it: a parameter whose value is a URL has it as URL gives it. A URL that was not
// encoded spills the rest of its own parameters into the request's, so those are looked at in the same way when there is one.
func Target(raw string) string {
	path, query, found := strings.Cut(raw, "?")
	if !found || !strings.Contains(strings.ToLower(query), "url") && !strings.Contains(query, ":") && !strings.Contains(query, "%") {
		return raw
	}
	carries := false
	for pair := range pairs(query) {
		name, value, _ := strings.Cut(pair, "=")
		carries = carries || strings.EqualFold(decoded(name), "url") || isURL(decoded(value))
	}
	if !carries {
		return raw
	}
	return path + "?" + parameters(query, 0)
}

func inner(raw string, depth int) string {
	scheme, rest, found := strings.Cut(raw, "://")
	if !found {
		return raw
	}
	// The fragment is looked at with the query: who writes a "#" into a password has it end the URL there.
	rest, fragment, hasFragment := strings.Cut(rest, "#")
	rest, query, hasQuery := strings.Cut(rest, "?")
	rest, whole := withoutUser(rest, query, fragment)
	if whole {
		return inner(scheme+"://"+rest, depth)
	}
	var b strings.Builder
	b.WriteString(scheme + "://" + rest)
	if hasQuery {
		b.WriteString("?" + parameters(query, depth))
	}
	if hasFragment {
		b.WriteString("#" + fragment)
	}
	return b.String()
}

// withoutUser takes user name and password off an authority with its path. A password with a "/", "?" or "#" that was not encoded ends the authority for who
// reads by the rules, so that the rest of it would stay: with one, rest is all that follows it, and whole is true.
func withoutUser(text, query, fragment string) (rest string, whole bool) {
	authority, path, hasPath := strings.Cut(text, "/")
	host := authority[strings.LastIndexByte(authority, '@')+1:]
	if rest = host; hasPath {
		rest += "/" + path
	}
	if _, port, found := strings.Cut(host, ":"); !found || strings.HasPrefix(host, "[") || strings.Trim(port, "0123456789") == "" {
		return rest, false
	}
	for _, part := range []string{fragment, query, path} {
		if at := strings.LastIndexByte(part, '@'); at >= 0 {
			return part[at+1:], true
		}
	}
	return rest, false
}

// parameters hides the values of a query that are secrets, and looks into those that are URLs.
func parameters(query string, depth int) string {
	var b strings.Builder
	for pair := range pairs(query) {
		end := pair[len(strings.TrimRight(pair, "&;")):]
		pair = pair[:len(pair)-len(end)]
		name, value, found := strings.Cut(pair, "=")
		b.WriteString(name)
		if found {
			b.WriteString("=" + shown(name, value, depth))
		}
		b.WriteString(end)
	}
	return b.String()
}

func shown(name, value string, depth int) string {
	if value == "" {
		return ""
	}
	if isSecret(decoded(name)) {
		return Hidden
	}
	if isClean(value, depth) {
		return value // as it is written
	}
	if depth >= deepest {
		return Hidden
	}
	if told := inner(value, depth+1); isURL(value) && isClean(told, depth) {
		return told // it was not encoded, or not where it counts
	}
	once, err := url.QueryUnescape(value)
	if err != nil {
		return Hidden
	}
	told := inner(once, depth+1)
	if !isClean(told, depth) {
		return Hidden
	}
	return strings.ReplaceAll(url.QueryEscape(told), url.QueryEscape(Hidden), Hidden)
}

// isClean says whether a value has nothing to hide, however often it is decoded.
func isClean(value string, depth int) bool {
	for range deepest {
		if isURL(value) && (depth >= deepest || inner(value, depth+1) != value) {
			return false
		}
		plain, err := url.QueryUnescape(value)
		if err != nil || plain == value {
			return true
		}
		value = plain
	}
	return !isURL(value)
}

// pairs gives the parts of a query, each with what ends it.
func pairs(query string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for len(query) > 0 {
			end := len(query)
			if at := strings.IndexAny(query, "&;"); at >= 0 {
				end = at + 1
			}
			if !yield(query[:end]) {
				return
			}
			query = query[end:]
		}
	}
}

func isURL(text string) bool { return strings.Contains(text, "://") }

// decoded undoes percent-encoding as far as it can be, and more than once: what is encoded twice is as secret.
func decoded(text string) string {
	for range deepest {
		plain, err := url.QueryUnescape(text)
		if err != nil || plain == text {
			return text
		}
		text = plain
	}
	return text
}

// isSecret says by its name whether a parameter's value is for its owner only: the signatures of the object stores' URLs, tokens, keys.
func isSecret(name string) bool {
	name = strings.ToLower(strings.TrimRight(name, "&;"))
	switch name {
	case "next_page_token": // a number of TorchServe's lists
		return false
	case "pwd", "pass", "jwt", "sas", "code":
		return true
	}
	if strings.Contains(name, "%") {
		return true // it cannot be read
	}
	for _, part := range []string{"sig", "token", "secret", "passw", "credential", "auth", "key", "x-amz-", "x-goog-"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}
