package main

import "math"

// matrix is a perspective: three rows of three numbers.
type matrix [9]float64

// toUpright gives the perspective that makes a picture of so many pixels of a quadrangle, from the place in it to the place in the page.
func toUpright(box [4]point, width, height int) (matrix, bool) {
	w, h := float64(width), float64(height)
	to := [4]vector{{0, 0}, {w, 0}, {w, h}, {0, h}}
	var rows [8][9]float64
	for i, p := range box {
		x, y, u, v := float64(p.x), float64(p.y), to[i].x, to[i].y
		rows[i] = [9]float64{x, y, 1, 0, 0, 0, -x * u, -y * u, u}
		rows[i+4] = [9]float64{0, 0, 0, x, y, 1, -x * v, -y * v, v}
	}
	for i := range rows {
		most := i
		for k := i + 1; k < len(rows); k++ {
			if math.Abs(rows[k][i]) > math.Abs(rows[most][i]) {
				most = k
			}
		}
		if math.Abs(rows[most][i]) < 1e-12 {
			return matrix{}, false
		}
		rows[i], rows[most] = rows[most], rows[i]
		for k := i + 1; k < len(rows); k++ {
			f := rows[k][i] / rows[i][i]
			for j := i; j < len(rows[k]); j++ {
				rows[k][j] -= f * rows[i][j]
			}
		}
	}
	m := matrix{8: 1}
	for i := len(rows) - 1; i >= 0; i-- {
		sum := rows[i][8]
		for j := i + 1; j < len(rows); j++ {
			sum -= rows[i][j] * m[j]
		}
		m[i] = sum / rows[i][i]
	}
	return m.inverse()
}

func (m *matrix) inverse() (matrix, bool) {
	minor := func(a, b, c, d int) float64 { return m[a]*m[d] - m[b]*m[c] }
	determinant := m[0]*minor(4, 5, 7, 8) - m[1]*minor(3, 5, 6, 8) + m[2]*minor(3, 4, 6, 7)
	if determinant == 0 {
		return matrix{}, false
	}
	d := 1 / determinant
	return matrix{
		minor(4, 5, 7, 8) * d, -minor(1, 2, 7, 8) * d, minor(1, 2, 4, 5) * d,
		-minor(3, 5, 6, 8) * d, minor(0, 2, 6, 8) * d, -minor(0, 2, 3, 5) * d,
		minor(3, 4, 6, 7) * d, -minor(0, 1, 6, 7) * d, minor(0, 1, 3, 4) * d,
	}, true
}

const (
	places = 32 // of a pixel, between which no difference is made
	taps   = 4
	whole  = 1 << 15 // of cubic weights
)

// cubics are the weights of four by four pixels for each of the places between two pixels, as OpenCV has them.
type cubics [places * places][taps * taps]int32

func newCubics() *cubics {
	var line [places][taps]float32
	for i := range line {
		const a = -0.75
		x := float32(i) / places
		line[i][0] = ((a*(x+1)-5*a)*(x+1)+8*a)*(x+1) - 4*a
		line[i][1] = ((a+2)*x-(a+3))*x*x + 1
		line[i][2] = ((a+2)*(1-x)-(a+3))*(1-x)*(1-x) + 1
		line[i][3] = 1 - line[i][0] - line[i][1] - line[i][2]
	}
	table := &cubics{}
	for i := range table {
		w := &table[i]
		sum := int32(0)
		for k := range w {
			w[k] = int32(math.RoundToEven(float64(line[i/places][k/taps] * line[i%places][k%taps] * whole)))
			sum += w[k]
		}
		most, least := 10, 10 // of the four in the middle
		for _, k := range []int{10, 11, 14, 15} {
			if w[k] < w[least] {
				least = k
			} else if w[k] > w[most] {
				most = k
			}
		}
		if sum < whole {
			w[most] -= sum - whole
		} else {
			w[least] -= sum - whole
		}
	}
	return table
}

// upright cuts a quadrangle out and makes it upright; text that stands is laid down. It is none when the quadrangle has no area.
func (p *picture) upright(box [4]point, table *cubics) *picture {
	side := func(a, b int) float64 { return float64(length(point{box[a].x - box[b].x, box[a].y - box[b].y})) }
	width, height := int(max(side(0, 1), side(2, 3))), int(max(side(0, 3), side(1, 2)))
	if width < 1 || height < 1 {
		return nil
	}
	m, ok := toUpright(box, width, height)
	if !ok {
		return nil
	}
	out := newPicture(width, height)
	for y := range height {
		for x := range width {
			fx, fy := float64(x), float64(y)
			w := m[6]*fx + m[7]*fy + m[8]
			if w != 0 {
				w = places / w
			}
			p.cubic(out.pix[channels*(y*width+x):], table, int(math.RoundToEven((m[0]*fx+m[1]*fy+m[2])*w)), int(math.RoundToEven((m[3]*fx+m[4]*fy+m[5])*w)))
		}
	}
	const standing = 1.5
	if float64(height)/float64(width) >= standing {
		return out.turnedLeft()
	}
	return out
}

// cubic computes one pixel at a place that is given in parts of a pixel. Beyond the border its pixels go on.
func (p *picture) cubic(to []byte, table *cubics, x, y int) {
	w := &table[(y&(places-1))*places+x&(places-1)]
	left, top := x/places-1, y/places-1
	if x < 0 {
		left = (x-places+1)/places - 1
	}
	if y < 0 {
		top = (y-places+1)/places - 1
	}
	var sums [channels]int32
	for j := range taps {
		row := channels * min(max(top+j, 0), p.height-1) * p.width
		for i := range taps {
			from := row + channels*min(max(left+i, 0), p.width-1)
			for c := range channels {
				sums[c] += int32(p.pix[from+c]) * w[taps*j+i]
			}
		}
	}
	for c, sum := range sums {
		to[c] = byte(min(max((sum+whole/2)>>15, 0), full))
	}
}
