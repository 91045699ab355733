package vision

import "encoding/binary"

// isNegativeFax says whether a TIFF file is compressed as a fax and says that black is zero: golang.org/x/image gives its negative then.
func isNegativeFax(data []byte) bool {
	const (
		compression, photometric = 259, 262
		group3, group4           = 3, 4
		blackIsZero              = 1
		entrySize                = 12
	)
	var order binary.ByteOrder = binary.LittleEndian
	if len(data) < 8 {
		return false
	}
	if data[0] == 'M' {
		order = binary.BigEndian
	}
	at := uint64(order.Uint32(data[4:]))
	if at+2 > uint64(len(data)) {
		return false
	}
	entries := data[at+2:]
	fax, negative := false, false
	for range order.Uint16(data[at:]) {
		if len(entries) < entrySize {
			break
		}
		value := order.Uint16(entries[8:])
		switch order.Uint16(entries) {
		case compression:
			fax = value == group3 || value == group4
		case photometric:
			negative = value == blackIsZero
		}
		entries = entries[entrySize:]
	}
	return fax && negative
}
