package policy

import (
	"math/bits"
	"time"
)

// costs learns how long a batch takes by its size: a fixed part and a part for each request.
type costs struct {
	classes [costClasses]costClass

	fixed, each float64 // nanoseconds; computed of the classes
}

// costClasses are sizes by powers of two: 1, 2 to 3, 4 to 7 and so on; the last has all larger ones.
const costClasses = 12

// costClass is what batches of similar sizes took.
type costClass struct{ size, took, weight float64 }

const (
	costMemory = 8       // batches of a class that its averages are about
	costFade   = .99     // weight of the other classes, after each batch
	costLeast  = 1. / 16 // weight that stays
	costLucky  = .9      // share of a batch that took less than half of the average
	costClip   = 3       // one batch counts at most as so many times the average: a model's first ones, a pause of the machine
)

func (c *costs) observe(size int, took time.Duration) {
	k := &c.classes[class(size)]
	t := float64(took)
	if k.weight > 0 {
		t = min(t, costClip*k.took)
	}
	for i := range c.classes { // what was seen long ago counts less, but is all that is known of those sizes
		if other := &c.classes[i]; other != k && other.weight > costLeast {
			other.weight = max(other.weight*costFade, costLeast)
		}
	}
	k.weight = min(k.weight+1, costMemory)
	rate := 1 / k.weight
	if 2*t < k.took { // the ones before were a start, or the machine was busy
		rate = max(rate, costLucky)
	}
	k.size += rate * (float64(size) - k.size)
	k.took += rate * (t - k.took)
	c.fit()
}

// fit draws the line through the classes. Those that were not seen for long count if they agree with the others, or if there is only one other.
func (c *costs) fit() {
	var all, fresh [costClasses]bool
	n := 0
	for i := range c.classes {
		all[i] = c.classes[i].weight > 0
		if fresh[i] = c.classes[i].weight >= 1; fresh[i] {
			n++
		}
	}
	if n < 2 {
		c.line(&all)
		return
	}
	c.line(&fresh)
	for i := range c.classes {
		k := &c.classes[i]
		line := c.fixed + c.each*k.size
		all[i] = fresh[i] || all[i] && line < 2*k.took && k.took < 2*line
	}
	c.line(&all)
}

// line is the line of least weighted squares through some classes, with neither part negative. Of one class alone it is not known how much is fixed.
func (c *costs) line(use *[costClasses]bool) {
	var w, sn, st, nn, nt float64
	for i, k := range c.classes {
		if use[i] {
			w, sn, st = w+k.weight, sn+k.weight*k.size, st+k.weight*k.took
		}
	}
	n, t := sn/w, st/w
	for i, k := range c.classes {
		if use[i] {
			nn += k.weight * (k.size - n) * (k.size - n)
			nt += k.weight * (k.size - n) * (k.took - t)
		}
	}
	switch {
	case nn > 0:
		c.each = max(nt/nn, 0)
		c.fixed = t - c.each*n
	case n > 1:
		c.fixed, c.each = t/2, t/2/n
	default:
		c.fixed, c.each = t, 0
	}
	if c.fixed < 0 {
		c.fixed, c.each = 0, t/n
	}
}

// predict gives how long a batch takes.
func (c *costs) predict(size int) time.Duration {
	return time.Duration(c.fixed + c.each*float64(size))
}

// about is predict for a size of which batches may have run: what those took counts more than the line.
func (c *costs) about(size int) time.Duration {
	k := &c.classes[class(size)]
	line := c.predict(size)
	if k.weight < costMemory/2 {
		return line
	}
	return time.Duration(k.took * float64(line) / max(c.fixed+c.each*k.size, 1))
}

// class gives the class of a size.
func class(size int) int { return min(bits.Len(uint(max(size, 1)))-1, costClasses-1) }

// known says whether there is anything to predict by.
func (c *costs) known() bool { return c.fixed > 0 || c.each > 0 }
