package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rivulet/test/harness/labtest"
)

// The story of make demo-shelf, which fails by itself where a node is not Ready, somebody is not reached, the download does
// not outlive the server's power cut, or a removed worker keeps pods.
func TestShelfStory(t *testing.T) {
	playInOwnLab(t, "shelf", 8*time.Minute, func(ctx context.Context, dir string) error {
		return makeShelf(ctx, dir, labtest.Binary(), t.Logf)
	})
}

// slowReader waits once, before the byte at.
type slowReader struct {
	io.Reader
	at   int
	wait time.Duration
}

func (r *slowReader) Read(p []byte) (int, error) {
	if r.at <= 0 {
		time.Sleep(r.wait)
		r.wait = 0
	}
	n, err := r.Reader.Read(p[:min(len(p), max(r.at, 1))])
	r.at -= n
	return n, err
}

func TestReadThrough(t *testing.T) {
	const n = 1 << 20
	cut := func() error { time.Sleep(time.Second); return nil }
	for name, c := range map[string]struct {
		bytes, at int
		wait      time.Duration
		pause     time.Duration
		want      string
	}{
		"goes on":             {n, n * 3 / 4, 5 * time.Second, 6 * time.Second, ""},
		"was not interrupted": {n, n * 3 / 4, 0, 0, "interrupted nothing"},
		"ends too early":      {n * 3 / 4, n, 0, 0, "of 1048576 bytes arrived"},
		"ends before the cut": {n / 4, n, 0, 0, "the first half"},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, pause, err := readThrough(&slowReader{bytes.NewReader(make([]byte, c.bytes)), c.at, c.wait}, n, cut)
			if c.want == "" && (err != nil || pause != c.pause) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: %v, %v", name, pause, err)
			}
		})
	}
	if _, _, err := readThrough(bytes.NewReader(make([]byte, n)), n, func() error { return errors.New("no power") }); err == nil {
		t.Error("a cut that failed was forgiven")
	}
}
