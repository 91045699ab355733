package main

import (
	"cmp"
	"math"
	"slices"
)

// What the detector's map is read with, as in the package's config.yaml.
const (
	threshold    = float32(0.3) // from which on a place of the map is text
	boxThreshold = 0.5          // what a box has to have on average
	widening     = 1.6
	mostBoxes    = 1000
	leastSide    = 3
	lineHeight   = 10 // boxes whose tops differ by less are on one line
)

// heat is the detector's map: how likely each place is text.
type heat struct {
	width, height int
	values        []float32
}

// boxesOf finds the boxes of text in a map, in the order of reading, with their corners in a page of so many pixels.
func (h *heat) boxesOf(width, height int) [][4]point {
	var boxes [][4]point
	for _, region := range h.regions() {
		if box, ok := h.box(region, width, height); ok {
			boxes = append(boxes, box)
		}
	}
	slices.SortStableFunc(boxes, func(a, b [4]point) int { return cmp.Or(cmp.Compare(a[0].y, b[0].y), cmp.Compare(a[0].x, b[0].x)) })
	for i := range boxes {
		for j := i; j > 0 && math.Abs(float64(boxes[j][0].y-boxes[j-1][0].y)) < lineHeight && boxes[j][0].x < boxes[j-1][0].x; j-- {
			boxes[j], boxes[j-1] = boxes[j-1], boxes[j]
		}
	}
	return boxes
}

// box makes a box of the points of a region, unless it is too small or too pale.
func (h *heat) box(region []point, width, height int) (box [4]point, ok bool) {
	corners, side := leastRectangle(region, false)
	if side < leastSide {
		return box, false
	}
	corners = arranged(corners)
	if h.score(corners) < boxThreshold {
		return box, false
	}
	wide, side := leastRectangle(widened(corners, widening), true)
	if side < leastSide+2 {
		return box, false
	}
	box = arranged(wide)
	for i := range box {
		box[i].x = scaled(box[i].x, h.width, width)
		box[i].y = scaled(box[i].y, h.height, height)
	}
	box = clockwise(box)
	for i := range box {
		box[i].x = float32(int(min(max(box[i].x, 0), float32(width-1))))
		box[i].y = float32(int(min(max(box[i].y, 0), float32(height-1))))
	}
	across, down := length(point{box[0].x - box[1].x, box[0].y - box[1].y}), length(point{box[0].x - box[3].x, box[0].y - box[3].y})
	return box, int(across) > leastSide && int(down) > leastSide
}

// scaled moves a place of the map to the page, to a whole pixel.
func scaled(v float32, from, to int) float32 {
	return float32(min(max(math.RoundToEven(float64(v/float32(from)*float32(to))), 0), float64(to)))
}

// clockwise orders corners: of the two at the left the upper one, the right ones, the lower left.
func clockwise(corners [4]point) [4]point {
	byX := func(a, b point) int { return cmp.Compare(a.x, b.x) }
	byY := func(a, b point) int { return cmp.Compare(a.y, b.y) }
	slices.SortStableFunc(corners[:], byX)
	slices.SortStableFunc(corners[:2], byY)
	slices.SortStableFunc(corners[2:], byY)
	return [4]point{corners[0], corners[2], corners[3], corners[1]}
}

// regions gives the border points of what is text in the map, and of the holes in it: each a box may be made of. Text grows by a pixel first.
func (h *heat) regions() [][]point {
	w := h.width + 2 // there is a frame of a pixel without text
	ink := make([]bool, w*(h.height+2))
	at := func(x, y int) int { return (y+1)*w + x + 1 }
	for y := range h.height {
		for x := range h.width {
			if h.values[y*h.width+x] <= threshold {
				continue
			}
			for _, to := range [4][2]int{{x, y}, {x + 1, y}, {x, y + 1}, {x + 1, y + 1}} {
				if to[0] < h.width && to[1] < h.height {
					ink[at(to[0], to[1])] = true
				}
			}
		}
	}
	f := &filling{ink: ink, width: w, seen: make([]bool, len(ink)), outside: func(i int) point { return point{float32(i%w - 1), float32(i/w - 1)} }}
	f.fill(0) // the paper around all
	var all [][]point
	for i := range ink {
		if f.seen[i] {
			continue
		}
		if points := f.fill(i); len(all) < mostBoxes {
			all = append(all, points)
		}
	}
	return all
}

// filling walks over what is connected: text also across corners, paper only side by side.
type filling struct {
	ink     []bool
	seen    []bool
	width   int
	outside func(i int) point
}

// fill walks over what is connected with a place, and gives the border: the points of the text, or of the text around the paper.
func (f *filling) fill(from int) []point {
	ink := f.ink[from]
	sides := []int{-1, 1, -f.width, f.width}
	around := sides
	if ink {
		around = append(slices.Clone(sides), -f.width-1, -f.width+1, f.width-1, f.width+1)
	}
	f.seen[from] = true
	waiting := []int{from}
	var border []point
	for len(waiting) > 0 {
		i := waiting[len(waiting)-1]
		waiting = waiting[:len(waiting)-1]
		for _, d := range around {
			next := i + d
			switch {
			case next < 0 || next >= len(f.ink) || f.ink[next] == ink && f.seen[next]:
			case f.ink[next] == ink:
				f.seen[next] = true
				waiting = append(waiting, next)
			case ink:
				border = append(border, f.outside(i))
			default:
				border = append(border, f.outside(next))
			}
		}
	}
	return border
}

// score is the mean of the map in a box.
func (h *heat) score(box [4]point) float64 {
	low, high := box[0], box[0]
	for _, p := range box[1:] {
		low, high = point{min(low.x, p.x), min(low.y, p.y)}, point{max(high.x, p.x), max(high.y, p.y)}
	}
	bound := func(v float64, size int) int { return min(max(int(v), 0), size-1) }
	left, right := bound(math.Floor(float64(low.x)), h.width), bound(math.Ceil(float64(high.x)), h.width)
	top, bottom := bound(math.Floor(float64(low.y)), h.height), bound(math.Ceil(float64(high.y)), h.height)
	var corners [4]vector
	for i, p := range box {
		corners[i] = vector{math.Trunc(float64(p.x - float32(left))), math.Trunc(float64(p.y - float32(top)))}
	}
	sum, n := 0.0, 0
	for y := 0; y <= bottom-top; y++ {
		from, to := crossed(corners, float64(y))
		for x := max(from, 0); x <= min(to, right-left); x++ {
			sum += float64(h.values[(top+y)*h.width+left+x])
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// crossed gives the first and the last pixel of a row that are in a convex polygon, its outline among them: of a flat side all pixels that are nearest to it.
func crossed(corners [4]vector, y float64) (first, last int) {
	low, high := math.Inf(1), math.Inf(-1)
	for i, a := range corners {
		b := corners[(i+1)%len(corners)]
		if y < min(a.y, b.y) || y > max(a.y, b.y) {
			continue
		}
		if a.y == b.y {
			low, high = min(low, a.x, b.x), max(high, a.x, b.x)
			continue
		}
		slope := (b.x - a.x) / (b.y - a.y)
		x, half := a.x+slope*(y-a.y), 0.0
		if math.Abs(slope) > 1 {
			half = math.Abs(slope) / 2
		}
		left, right := math.Round(max(x-half, min(a.x, b.x))), math.Round(min(x+half, max(a.x, b.x)))
		low, high = min(low, left), max(high, right)
	}
	if low > high {
		return 0, -1
	}
	return int(low), int(high)
}
