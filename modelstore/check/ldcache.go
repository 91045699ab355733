package check

import (
	"bytes"
	"encoding/binary"
	"errors"
)

const (
	oldCacheMagic = "ld.so-1.7.0\x00"
	newCacheMagic = "glibc-ld.so.cache1.1"
	newHeader     = 48 // magic, number of entries, length of the strings, flags, padding, offset of extensions, padding
	newEntry      = 24 // flags, name, path, OS version, hardware capabilities
	oldHeader     = 16
	oldEntry      = 12
	mostCached    = 1 << 20 // entries
)

var errCache = errors.New("it is no cache of the loader's")

// parseCache reads /etc/ld.so.cache: for each library's name the files that have it.
func parseCache(data []byte) (map[string][]string, error) {
	base := 0
	if bytes.HasPrefix(data, []byte(oldCacheMagic)) {
		if len(data) < oldHeader {
			return nil, errCache
		}
		// The old part comes first for old loaders; the new one follows, on a boundary of eight bytes.
		entries := int64(binary.LittleEndian.Uint32(data[12:]))
		end := oldHeader + entries*oldEntry
		if end = (end + 7) &^ 7; entries > mostCached || end > int64(len(data)) {
			return nil, errCache
		}
		base = int(end)
	}
	cache := data[base:]
	if len(cache) < newHeader || !bytes.HasPrefix(cache, []byte(newCacheMagic)) {
		return nil, errCache
	}
	order := byteOrder(cache[28])
	entries := int64(order.Uint32(cache[20:]))
	if entries > mostCached || newHeader+entries*newEntry > int64(len(cache)) {
		return nil, errCache
	}
	found := map[string][]string{}
	for i := range int(entries) {
		entry := cache[newHeader+i*newEntry:]
		name, ok := cString(cache, order.Uint32(entry[4:]))
		path, ok2 := cString(cache, order.Uint32(entry[8:]))
		if ok && ok2 {
			found[name] = append(found[name], path)
		}
	}
	return found, nil
}

// byteOrder reads the flag for the order of the cache's bytes: 2 is little, 3 is big, 0 says nothing.
func byteOrder(flags byte) binary.ByteOrder {
	if flags&3 == 3 {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// longestCached bounds a name in the cache.
const longestCached = 4096

func cString(data []byte, at uint32) (string, bool) {
	if int64(at) >= int64(len(data)) {
		return "", false
	}
	rest := data[at:min(int64(at)+longestCached, int64(len(data)))]
	end := bytes.IndexByte(rest, 0)
	if end <= 0 {
		return "", false
	}
	return string(rest[:end]), true
}
