package main

import (
	"cmp"
	"math"
	"slices"
)

// point is a place in a picture. OpenCV computes rectangles in float32, and a half pixel more or less is another crop.
type point struct{ x, y float32 }

// hull is the convex hull of points, counterclockwise where y goes up.
func hull(points []point) []point {
	points = slices.Clone(points)
	slices.SortFunc(points, func(a, b point) int { return cmp.Or(cmp.Compare(a.x, b.x), cmp.Compare(a.y, b.y)) })
	points = slices.Compact(points)
	if len(points) < 3 {
		return points
	}
	half := func(points []point) []point {
		var h []point
		for _, p := range points {
			for len(h) > 1 && turn(h[len(h)-2], h[len(h)-1], p) <= 0 {
				h = h[:len(h)-1]
			}
			h = append(h, p)
		}
		return h[:len(h)-1]
	}
	lower := half(points)
	slices.Reverse(points)
	return append(lower, half(points)...)
}

// turn is above 0 when the way from a over b to c turns left.
func turn(a, b, c point) float64 {
	return float64(b.x-a.x)*float64(c.y-a.y) - float64(b.y-a.y)*float64(c.x-a.x)
}

// calipers are a rectangle around a hull: the indices of the points at its sides, and the direction of its first side.
type calipers struct {
	hull      []point
	edges     []point
	inverse   []float32 // of the edges' lengths
	at        [4]int    // bottom, right, top, left
	baseA     float32
	baseB     float32
	leastArea float32
}

// rectangle is what the calipers find: a corner and two sides.
type rectangle struct{ corner, along, across point }

// leastRectangle is cv2.minAreaRect: its four corners, and the length of its shorter side. It depends on where the walk along the hull begins, but for rounding: behind the
// lowest point, and of several behind the rightmost or the leftmost one.
func leastRectangle(points []point, rightmost bool) (corners [4]point, shorter float32) {
	h := hull(points)
	last := 0
	for i, p := range h {
		if q := h[last]; p.y < q.y || p.y == q.y && p.x != q.x && p.x > q.x == rightmost {
			last = i
		}
	}
	if len(h) > 0 {
		h = slices.Concat(h[last+1:], h[:last+1])
	}
	switch len(h) {
	case 0:
		return corners, 0
	case 1:
		return [4]point{h[0], h[0], h[0], h[0]}, 0
	case 2:
		return corners, 0
	}
	c := newCalipers(h)
	var best rectangle
	for range h {
		if r, smaller := c.rotate(); smaller {
			best = r
		}
	}
	center := point{best.corner.x + (best.along.x+best.across.x)*0.5, best.corner.y + (best.along.y+best.across.y)*0.5}
	width, height := length(best.along), length(best.across)
	angle := float32(float64(float32(math.Atan2(float64(best.along.y), float64(best.along.x)))) * 180 / math.Pi)
	radians := float64(angle) * math.Pi / 180
	b, a := float32(math.Cos(radians))*0.5, float32(math.Sin(radians))*0.5
	corners[0] = point{center.x - a*height - b*width, center.y + b*height - a*width}
	corners[1] = point{center.x + a*height - b*width, center.y - b*height - a*width}
	corners[2] = point{2*center.x - corners[0].x, 2*center.y - corners[0].y}
	corners[3] = point{2*center.x - corners[1].x, 2*center.y - corners[1].y}
	return corners, min(width, height)
}

func length(v point) float32 {
	return float32(math.Sqrt(float64(v.x)*float64(v.x) + float64(v.y)*float64(v.y)))
}

func newCalipers(h []point) *calipers {
	c := &calipers{hull: h, edges: make([]point, len(h)), inverse: make([]float32, len(h)), leastArea: math.MaxFloat32}
	bottom, right, top, left := 0, 0, 0, 0
	for i, p := range h {
		next := h[(i+1)%len(h)]
		c.edges[i] = point{next.x - p.x, next.y - p.y}
		c.inverse[i] = float32(1 / math.Hypot(float64(c.edges[i].x), float64(c.edges[i].y)))
		if p.x < h[left].x {
			left = i
		}
		if p.x > h[right].x {
			right = i
		}
		if p.y > h[top].y {
			top = i
		}
		if p.y < h[bottom].y {
			bottom = i
		}
	}
	c.at = [4]int{bottom, right, top, left}
	c.baseA = 1 // hulls are counterclockwise
	return c
}

// rotate turns the rectangle until a side lies on the next edge, and says whether it is the smallest so far.
func (c *calipers) rotate() (r rectangle, smaller bool) {
	side := func(i int) point { return c.edges[c.at[i]] }
	dots := [4]float32{
		c.baseA*side(0).x + c.baseB*side(0).y, -c.baseB*side(1).x + c.baseA*side(1).y,
		-c.baseA*side(2).x - c.baseB*side(2).y, c.baseB*side(3).x - c.baseA*side(3).y,
	}
	turned, most := 0, dots[0]*c.inverse[c.at[0]]
	for i := 1; i < len(dots); i++ {
		if cosine := dots[i] * c.inverse[c.at[i]]; cosine > most {
			turned, most = i, cosine
		}
	}
	edge, inverse := side(turned), c.inverse[c.at[turned]]
	x, y := edge.x*inverse, edge.y*inverse
	switch turned {
	case 0:
		c.baseA, c.baseB = x, y
	case 1:
		c.baseA, c.baseB = y, -x
	case 2:
		c.baseA, c.baseB = -x, -y
	default:
		c.baseA, c.baseB = -y, x
	}
	c.at[turned] = (c.at[turned] + 1) % len(c.hull)
	bottom, right, top, left := c.hull[c.at[0]], c.hull[c.at[1]], c.hull[c.at[2]], c.hull[c.at[3]]
	width := (right.x-left.x)*c.baseA + (right.y-left.y)*c.baseB
	height := -(top.x-bottom.x)*c.baseB + (top.y-bottom.y)*c.baseA
	if area := width * height; area <= c.leastArea {
		c.leastArea = area
		along, across := c.baseA*left.x+c.baseB*left.y, -c.baseB*bottom.x+c.baseA*bottom.y
		scale := 1 / (c.baseA*c.baseA + c.baseB*c.baseB)
		return rectangle{
			point{(along*c.baseA - across*c.baseB) * scale, (c.baseA*across + c.baseB*along) * scale}, point{c.baseA * width, c.baseB * width}, point{-c.baseB * height, c.baseA * height},
		}, true
	}
	return rectangle{}, false
}

// arranged puts the corners of a rectangle in order: top left, top right, bottom right, bottom left.
func arranged(corners [4]point) [4]point {
	slices.SortStableFunc(corners[:], func(a, b point) int { return cmp.Compare(a.x, b.x) })
	left, right := [2]point{corners[1], corners[0]}, [2]point{corners[3], corners[2]} // the upper and the lower one
	if corners[1].y > corners[0].y {
		left = [2]point{corners[0], corners[1]}
	}
	if corners[3].y > corners[2].y {
		right = [2]point{corners[2], corners[3]}
	}
	return [4]point{left[0], right[0], right[1], left[1]}
}

// widened moves the sides of a quadrangle outward, as far as its area is for its outline, and makes its corners round, as Clipper does with whole numbers.
func widened(box [4]point, ratio float64) []point {
	area, outline := 0.0, 0.0
	for i, p := range box {
		next := box[(i+1)%len(box)]
		area += float64(p.x)*float64(next.y) - float64(next.x)*float64(p.y)
		outline += math.Hypot(float64(next.x)-float64(p.x), float64(next.y)-float64(p.y))
	}
	distance := math.Abs(area) / 2 * ratio / outline
	o := newOffset(box, distance)
	if len(o.corners) < 3 {
		return nil
	}
	before := len(o.corners) - 1
	for i := range o.corners {
		o.corner(i, before)
		before = i
	}
	return o.made
}

type vector struct{ x, y float64 }

// offset is a polygon whose sides are moved outward.
type offset struct {
	corners, normals []vector
	distance         float64
	sin, cos, steps  float64 // of one step of a round corner, and how many a full turn's radian has
	made             []point
}

func newOffset(box [4]point, distance float64) *offset {
	const tolerance = 0.25 // how far a round corner may be from its circle
	o := &offset{distance: distance}
	for _, p := range box {
		v := vector{math.Trunc(float64(p.x)), math.Trunc(float64(p.y))}
		if n := len(o.corners); n == 0 || o.corners[n-1] != v {
			o.corners = append(o.corners, v)
		}
	}
	if n := len(o.corners); n > 1 && o.corners[0] == o.corners[n-1] {
		o.corners = o.corners[:n-1]
	}
	area := 0.0
	for i, p := range o.corners {
		next := o.corners[(i+1)%len(o.corners)]
		area += p.x*next.y - next.x*p.y
	}
	if area < 0 {
		slices.Reverse(o.corners)
	}
	for i, p := range o.corners {
		next := o.corners[(i+1)%len(o.corners)]
		f := 1 / math.Hypot(next.x-p.x, next.y-p.y)
		o.normals = append(o.normals, vector{(next.y - p.y) * f, -(next.x - p.x) * f})
	}
	y := min(tolerance, distance*tolerance)
	steps := min(math.Pi/math.Acos(1-y/distance), distance*math.Pi)
	o.sin, o.cos = math.Sincos(2 * math.Pi / steps)
	o.steps = steps / (2 * math.Pi)
	return o
}

func (o *offset) push(at, normal vector) {
	o.made = append(o.made, point{float32(math.Round(at.x + normal.x*o.distance)), float32(math.Round(at.y + normal.y*o.distance))})
}

// corner makes a corner, which may have a little arc.
func (o *offset) corner(i, before int) {
	at, from, to := o.corners[i], o.normals[before], o.normals[i]
	sine, cosine := from.x*to.y-to.x*from.y, from.x*to.x+from.y*to.y
	switch {
	case math.Abs(sine*o.distance) < 1 && cosine > 0:
		o.push(at, from)
		return
	case sine*o.distance < 0: // it turns inward
		o.push(at, from)
		o.push(at, vector{})
		o.push(at, to)
		return
	}
	normal := from
	for range max(int(math.Round(o.steps*math.Abs(math.Atan2(min(max(sine, -1), 1), cosine)))), 1) {
		o.push(at, normal)
		normal = vector{normal.x*o.cos - o.sin*normal.y, normal.x*o.sin + normal.y*o.cos}
	}
	o.push(at, to)
}
