// Package browser drives a headless Chromium in tests (Debian's package chromium-headless-shell, which test/deps
// installs). It writes to the test's temporary folder only, and the browser ends with the test.
package browser

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// Program is the browser.
const Program = "/usr/bin/chromium-headless-shell"

// Limit bounds each step.
const Limit = 30 * time.Second

// Browser is a browser with one tab.
type Browser struct {
	t   testing.TB
	ctx context.Context
}

// Open starts a browser that accepts any certificate, as a person does who has compared the fingerprint.
func Open(t testing.TB) *Browser {
	t.Helper()
	if _, err := os.Stat(Program); err != nil {
		t.Fatalf("%v; install it: test/deps browser", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(Program), chromedp.NoSandbox, chromedp.Flag("ignore-certificate-errors", true),
		chromedp.Flag("font-render-hinting", "none"), chromedp.Flag("disable-lcd-text", true), chromedp.Flag("lang", "en-US"), chromedp.UserDataDir(t.TempDir()))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	return newTab(t, ctx)
}

// Tab opens another one.
func (b *Browser) Tab() *Browser {
	ctx, cancel := chromedp.NewContext(b.ctx)
	b.t.Cleanup(cancel)
	return newTab(b.t, ctx)
}

// newTab opens the tab; the context of its first step is that of its life.
func newTab(t testing.TB, ctx context.Context) *Browser {
	t.Helper()
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil {
		t.Fatal(err)
	}
	return &Browser{t, ctx}
}

// Do fails the test if a step does.
func (b *Browser) Do(what string, steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, Limit)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatalf("%s: %v\n%s", what, err, b.text())
	}
}

// text is what the page shows, for messages.
func (b *Browser) text() string {
	ctx, cancel := context.WithTimeout(b.ctx, 5*time.Second)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`))
	if err != nil {
		return err.Error()
	}
	return text
}

// Value is the result of a script.
func Value[T any](b *Browser, script string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, Limit)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script))
	if err != nil {
		b.t.Fatalf("%s: %v", script, err)
	}
	return v
}

// Wait waits until a script's result is true. A page that is replaced meanwhile is no failure.
func (b *Browser) Wait(what, script string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, Limit)
	defer cancel()
	for {
		is, err := chromedp.Run(ctx, chromedp.Evaluate[bool](script))
		if err == nil && is {
			return
		}
		select {
		case <-ctx.Done():
			b.t.Fatalf("%s: %v, %v\n%s", what, is, err, b.text())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Dark has pages see that the user prefers dark colours, or light ones.
func Dark(on bool) chromedp.Action[chromedp.Void] {
	scheme := "light"
	if on {
		scheme = "dark"
	}
	return chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return err
	})
}

// OnNewDocument runs a script in each page before its own.
func OnNewDocument(script string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
		return err
	})
}

// Picture is the whole page.
func (b *Browser) Picture() image.Image {
	b.t.Helper()
	Value[bool](b, `window.drawn = false; requestAnimationFrame(() => requestAnimationFrame(() => (window.drawn = true))); true`)
	b.Wait("the page is drawn", `window.drawn`)
	ctx, cancel := context.WithTimeout(b.ctx, Limit)
	defer cancel()
	raw, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(raw))
	if err != nil {
		b.t.Fatal(err)
	}
	return img
}

// The bounds of Same: how much a pixel may differ, of 255, and how many pixels may differ more. Versions of the browser
// draw the edges of letters differently.
const (
	most, share = 64, 0.01
)

// Same compares a picture with the one in a file, of gray levels, or with update replaces that. A picture that differs
// is written beside it, with the ending .new.png.
func Same(t testing.TB, file string, got image.Image, update bool) {
	t.Helper()
	levels := make(color.Palette, 16) // small files
	for i := range levels {
		levels[i] = color.Gray{uint8(i * 17)} //nolint:gosec // 255 at most
	}
	small := image.NewPaletted(got.Bounds(), levels)
	draw.Draw(small, small.Bounds(), got, got.Bounds().Min, draw.Src)
	write := func(name string) {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, out.Bytes(), 0o644); err != nil { //nolint:gosec // anybody may see it
			t.Fatal(err)
		}
	}
	if update {
		write(file)
		return
	}
	f, err := os.Open(file)
	if err != nil {
		t.Errorf("%v; make it with -update, and look at it", err)
		return
	}
	defer f.Close()
	want, err := png.Decode(f)
	if err != nil {
		t.Errorf("%s: %v", file, err)
		return
	}
	if why := differ(want, small); why != "" {
		write(file + ".new.png")
		t.Errorf("%s: %s; compare it with %[1]s.new.png, and if that is right: -update", file, why)
	}
}

// differ is how two pictures differ, empty if they are alike.
func differ(want, got image.Image) string {
	w, g := want.Bounds().Size(), got.Bounds().Size()
	if w.X != g.X || max(w.Y, g.Y)-min(w.Y, g.Y) > w.Y/50+4 {
		return fmt.Sprintf("it is of %v, and %v was wanted", g, w)
	}
	off := 0
	for y := range min(w.Y, g.Y) {
		for x := range w.X {
			a, b := color.GrayModel.Convert(want.At(x, y)).(color.Gray).Y, color.GrayModel.Convert(got.At(x, y)).(color.Gray).Y
			if max(a, b)-min(a, b) > most {
				off++
			}
		}
	}
	if part := float64(off) / float64(w.X*w.Y); part > share {
		return fmt.Sprintf("%.1f %% of its pixels differ", 100*part)
	}
	return ""
}
