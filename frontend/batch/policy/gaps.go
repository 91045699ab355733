package policy

import (
	"math/bits"
	"time"
)

// gaps learns how long it takes until the next request arrives, of those that are expected. Times are counted in classes that grow by half an octave.
// One that ended without an arrival says only that it would have been longer (it is censored); the estimate of the distribution is Kaplan's and Meier's.
type gaps struct {
	ended    [gapClasses]float64
	censored [gapClasses]float64
	fresh    bool // something was learned since the last forget
}

const (
	gapClasses = 34
	gapUnit    = 8 * time.Microsecond // the end of the first class; the last one ends at 740 ms
	gapForget  = 0.9                  // weight of what was learned before, after each batch
)

// gapClass gives the class of a time.
func gapClass(d time.Duration) int {
	x := uint64(max(d, 0) / (gapUnit / 8)) // in eighths
	if x <= 8 {
		return 0
	}
	octave := bits.Len64(x) - 4 // 0 for 8 to 15
	half := 0
	if x >= 11<<octave { // about the square root of two, times eight
		half = 1
	}
	return min(2*octave+half+1, gapClasses-1)
}

// gapEnd gives the end of a class, in nanoseconds.
func gapEnd(class int) float64 {
	end := float64(uint64(gapUnit) << (class / 2))
	if class%2 == 1 {
		end *= 11. / 8
	}
	return end
}

func (g *gaps) arrived(after time.Duration) {
	g.ended[gapClass(after)]++
	g.fresh = true
}

func (g *gaps) nothing(until time.Duration) {
	g.censored[gapClass(until)]++
	g.fresh = true
}

// forget makes what was learned count less, if there is something newer.
func (g *gaps) forget() {
	if !g.fresh {
		return
	}
	g.fresh = false
	for i := range g.ended {
		g.ended[i] *= gapForget
		g.censored[i] *= gapForget
	}
}

// best gives how long it pays to be patient with each next arrival when that is worth the time gain, and how long one takes that comes within that
// time. Without anything learned it knows nothing. A patience of 0 says that waiting does not pay.
func (g *gaps) best(gain float64) (patience, pace float64, known bool) {
	risk := 0.0
	for i := range g.ended {
		risk += g.ended[i] + g.censored[i]
	}
	if risk < 1./2 {
		return 0, 0, false
	}
	alive, spent, begun, most := 1.0, 0.0, 0.0, 0.0
	for i := range g.ended {
		if risk < 1./64 {
			break
		}
		before := alive
		alive *= 1 - min(g.ended[i]/risk, 1)
		end := gapEnd(i)
		spent += (end - begun) * (before + alive) / 2
		begun = end
		risk -= g.ended[i] + g.censored[i]
		if value := gain*(1-alive) - spent; value > most+gain/1024 {
			most, patience = value, end
			pace = (spent - end*alive) / (1 - alive)
		}
	}
	return patience, pace, true
}
