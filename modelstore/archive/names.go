package archive

import (
	"crypto/sha256"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

const (
	maxNameBytes = 255 // of one file or folder, on every file system that is in use
	maxDepth     = 100 // folders within each other
)

// entryName makes an entry's name one below the model's folder; "." is that folder itself.
func entryName(entry string) (string, error) {
	if err := checkText(entry); err != nil {
		return "", err
	}
	switch {
	case path.IsAbs(entry):
		return "", refuse("pack it with relative names", "its entry %.200q has an absolute name", entry)
	case strings.ContainsRune(entry, '\\'):
		return "", refuse("pack it with forward slashes", "the name of its entry %.200q has a backslash in it", entry)
	case hasDrive(entry):
		return "", refuse("pack it with relative names", "the name of its entry %.200q begins with a drive letter", entry)
	}
	name := path.Clean(entry)
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("its entry %.200q would be written outside of the model's folder", entry)
	}
	if err := checkLookalikes(entry); err != nil {
		return "", err
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		depth++
		if len(part) > maxNameBytes {
			return "", refuse("", "the name of an entry has a part that is longer than %d bytes: %.60q…", maxNameBytes, part)
		}
	}
	if depth > maxDepth {
		return "", refuse("", "an entry lies in more than %d folders within each other: %.60q…", maxDepth, name)
	}
	return name, nil
}

// checkText refuses names that cannot be shown as they are.
func checkText(entry string) error {
	if !utf8.ValidString(entry) {
		return refuse("pack it with names in UTF-8", "the name of its entry %.200q is not UTF-8", entry)
	}
	for _, r := range entry {
		switch {
		case unicode.IsControl(r):
			return refuse("rename it", "the name of its entry %.200q has a control character in it", entry)
		case unicode.Is(unicode.Bidi_Control, r), r == '\u2028', r == '\u2029':
			return refuse("rename it", "the name of its entry %.200q has a character in it that changes how the text around it is shown", entry)
		}
	}
	return nil
}

// hasDrive says whether Windows would take the name's beginning for a drive.
func hasDrive(entry string) bool {
	return len(entry) > 1 && entry[1] == ':' && ('a' <= entry[0]|0x20 && entry[0]|0x20 <= 'z')
}

// checkLookalikes refuses names that lead elsewhere for whoever takes similar letters for the same: a two-dot leader for two dots, a full-width slash for
// a slash.
func checkLookalikes(entry string) error {
	plain := norm.NFKC.String(entry)
	if plain == entry {
		return nil
	}
	if strings.Count(plain, "/") != strings.Count(entry, "/") || strings.ContainsRune(plain, '\\') || hasDots(plain) && !hasDots(entry) || hasDrive(plain) {
		return refuse("rename it", "the name of its entry %.200q has letters in it that stand for those of a path", entry)
	}
	return nil
}

func hasDots(name string) bool { return strings.Contains("/"+name+"/", "/../") }

// nameKey is the same for names that a file system may take for the same: it does not tell letters by their case, nor by how accents are written.
type nameKey [16]byte

func keyOf(name string) nameKey {
	folded := norm.NFC.String(strings.Map(fold, norm.NFD.String(name)))
	sum := sha256.Sum256([]byte(folded))
	return nameKey(sum[:16])
}

// fold gives the same letter for all cases of one.
func fold(r rune) rune {
	least := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		least = min(least, next)
	}
	return least
}

// made is a file or folder of an archive that was written.
type made struct {
	dir      bool
	spelling nameKey // of the name as it is
}

func spellingOf(name string) nameKey {
	sum := sha256.Sum256([]byte(name))
	return nameKey(sum[:16])
}

// written is what an archive has written so far. Names are kept as digests: an archive may have very many and very long ones.
type written map[nameKey]made

// add notes an entry, and gives how many folders it implies that were not there before.
func (w written) add(name string, dir bool) (implied int, err error) {
	key := keyOf(name)
	before, seen := w[key]
	switch {
	case seen && before.spelling != spellingOf(name):
		return 0, clash(name)
	case seen && before.dir != dir:
		return 0, refuse("", "it has a file and a folder named %.200q", name)
	case seen && !dir:
		return 0, refuse("pack each file once", "it has more than one entry named %.200q", name)
	}
	w[key] = made{dir: dir, spelling: spellingOf(name)}
	if seen {
		return 0, nil
	}
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		key := keyOf(parent)
		before, seen := w[key]
		switch {
		case seen && before.spelling != spellingOf(parent):
			return 0, clash(parent)
		case seen && !before.dir:
			return 0, fmt.Errorf("its entry %.200q lies in %.200q, which is a file", name, parent)
		case seen:
			return implied, nil
		}
		w[key] = made{dir: true, spelling: spellingOf(parent)}
		implied++
	}
	return implied, nil
}

func clash(name string) error {
	return refuse("rename one of them", "the name of its entry %.200q and that of another one differ only in the case or the form of letters", name)
}
