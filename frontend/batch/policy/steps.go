package policy

// steps are the preferred sizes of a model, in ascending order; there may be none.
type steps struct {
	sizes  []int
	padded bool
}

// floor gives the largest preferred size up to n, 0 when there is none.
func (p *steps) floor(n int) int {
	best := 0
	for _, size := range p.sizes {
		if size > n {
			break
		}
		best = size
	}
	return best
}

// ceil gives the smallest preferred size from n on, and n when there is none.
func (p *steps) ceil(n int) int {
	for _, size := range p.sizes {
		if size >= n {
			return size
		}
	}
	return n
}

// cost gives the size that a batch of n costs as much as.
func (p *steps) cost(n int) int {
	if p.padded {
		return p.ceil(n)
	}
	return n
}

// trim gives the size of a batch that leaves with up to n requests: n, unless most of what it is padded with would be padding.
func (p *steps) trim(n int) int {
	down := p.floor(n)
	if !p.padded || down == 0 || 2*(n-down) >= p.ceil(n)-down {
		return n
	}
	return down
}
