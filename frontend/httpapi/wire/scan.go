package wire

import "bytes"

// headScan remembers how far a head has been looked at, so that each byte is looked at once however slowly it comes.
type headScan struct {
	skipped int // bytes of empty lines before the request line
	pos     int // bytes looked at
	line    int // where the current line begins
	lines   int // lines of the head that are complete
	size    int // bytes of the complete field lines, without their LFs
}

// find looks for the end of the head that buffered begins with. It gives 0 and "" as long as the end has not come, or what is
// wrong with the head. The limits count as TorchServe's do: a line with its CR, a header block without its last line.
func (s *headScan) find(buffered []byte, limits Limits) (end int, problem string) {
	for {
		i := bytes.IndexByte(buffered[s.pos:], '\n')
		if i < 0 {
			s.pos = len(buffered)
			return 0, s.tooLong(len(buffered)-s.line, limits)
		}
		at := s.pos + i
		n := at - s.line
		if problem = s.tooLong(n, limits); problem != "" {
			return 0, problem
		}
		empty := n == 0 || n == 1 && buffered[s.line] == '\r'
		s.pos = at + 1
		s.line = s.pos
		switch {
		case empty && s.lines > 0:
			return s.pos, ""
		case empty:
			if s.skipped = s.pos; s.skipped > limits.Line {
				return 0, "empty lines"
			}
			continue
		case s.lines > 0:
			s.size += n
		}
		s.lines++
	}
}

func (s *headScan) tooLong(n int, limits Limits) string {
	switch {
	case s.lines == 0 && n > limits.Line:
		return "request line too long"
	case s.lines > 0 && n > 1 && s.size+n > limits.Fields:
		return "header block too long"
	}
	return ""
}
