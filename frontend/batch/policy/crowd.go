package policy

import "slices"

// crowd learns how many requests there are at a time: waiting, gathered and running. Clients that send the next request after the answer to the one
// before are as many as that at most, so what is missing to it may be expected soon, and nothing when nothing is missing.
type crowd struct {
	waiting int
	running int // requests

	peak   int              // most since the current round began; a round is as many batches as there are slots
	done   int              // batches of the current round
	peaks  [crowdMemory]int // of the rounds before
	next   int
	most   int  // of peaks and peak: the crowd
	steady bool // the peaks were nearly the same, as they are with clients that each wait for an answer
}

const (
	crowdMemory = 4        // rounds after which a crowd that has gone is forgotten
	crowdSteady = 31 / 32. // of the most is the least in a steady one
)

// missing is how many are not here now.
func (c *crowd) missing() int { return max(c.most-c.waiting-c.running, 0) }

func (c *crowd) arrived() {
	c.waiting++
	c.see()
}

func (c *crowd) left() { c.waiting = max(c.waiting-1, 0) }

func (c *crowd) see() {
	c.peak = max(c.peak, c.waiting+c.running)
	c.most = max(c.most, c.peak)
}

// sent also takes the queue's word for what waits.
func (c *crowd) sent(size, waiting int) {
	c.waiting = waiting
	c.running += size
	c.see()
}

func (c *crowd) ended(size, slots int) {
	c.running = max(c.running-size, 0)
	if c.done++; c.done < slots {
		return
	}
	c.peaks[c.next] = c.peak
	c.next = (c.next + 1) % crowdMemory
	c.done, c.peak = 0, c.waiting+c.running
	c.most = max(slices.Max(c.peaks[:]), c.peak)
	c.steady = float64(slices.Min(c.peaks[:])) >= crowdSteady*float64(c.most)
}
