//go:build !race

package webconsole

import (
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"rivulet/test/harness/browser"
)

var update = flag.Bool("update", false, "write the pictures of testdata/pictures anew")

// Every page on a phone, a PC and a large screen, as a picture. To read and to compare pictures is most of it, which the
// race detector makes slow; TestAccessibility opens all pages with the detector.
func TestPictures(t *testing.T) {
	d := withKubernetes(t)
	b := opened(t, d, Admin)
	// What differs from one run to the next.
	const still = `for (const e of document.querySelectorAll("code,#main .list .quiet,dd")) if (/SHA|[0-9A-F]{2}:[0-9A-F]{2}:|20\d\d-/.test(e.textContent)) e.textContent = "…"; scrollTo(0, 0); document.activeElement.blur(); true`
	for _, path := range paths() {
		for _, width := range []int64{390, 1280, 3840} {
			b.Do("a window", chromedp.EmulateViewport(width, 900))
			open(b, d, path)
			browser.Value[bool](b, still)
			name := strings.ReplaceAll(strings.Trim(strings.ReplaceAll(path, peerB, "lab-2"), "/"), "/", "-")
			if name == "" {
				name = "overview"
			}
			browser.Same(t, filepath.Join("testdata", "pictures", fmt.Sprintf("%s-%d.png", name, width)), b.Picture(), *update)
			if wide := browser.Value[int](b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); wide > 0 {
				t.Errorf("%s is %d pixels wider than a window of %d", path, wide, width)
			}
		}
	}
}
