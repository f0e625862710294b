package browser

import (
	"image"
	"image/color"
	"testing"
)

func TestDiffer(t *testing.T) {
	page := func(f func(*image.Gray)) image.Image {
		g := image.NewGray(image.Rect(0, 0, 200, 100))
		for i := range g.Pix {
			g.Pix[i] = 240
		}
		f(g)
		return g
	}
	same := page(func(*image.Gray) {})
	for what, tt := range map[string]struct {
		img   image.Image
		alike bool
	}{
		"itself":       {same, true},
		"a little":     {page(func(g *image.Gray) { g.Pix[500] = 0 }), true},
		"another tone": {page(func(g *image.Gray) { g.Pix[500] = 200 }), true},
		"a button less": {page(func(g *image.Gray) {
			for x := range 30 {
				for y := range 12 {
					g.SetGray(x, y, color.Gray{})
				}
			}
		}), false},
		"wider":  {image.NewGray(image.Rect(0, 0, 201, 100)), false},
		"longer": {image.NewGray(image.Rect(0, 0, 200, 140)), false},
	} {
		if why := differ(same, tt.img); (why == "") != tt.alike {
			t.Errorf("%s: %q", what, why)
		}
	}
}
