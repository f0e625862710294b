package vcluster

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// TestTheLogSaysHowLargeADatastoreIs: the file lags by several MiB, and one that is full would be shown as half full.
func TestTheLogSaysHowLargeADatastoreIs(t *testing.T) {
	const page = 512
	log := func(frames ...[2]uint32) []byte { // salt, and pages after the transaction
		out := make([]byte, 32)
		binary.BigEndian.PutUint32(out[16:], 7)
		for _, f := range frames {
			b := make([]byte, 24+page)
			binary.BigEndian.PutUint32(b[4:], f[1])
			binary.BigEndian.PutUint32(b[8:], f[0])
			out = append(out, b...)
		}
		return out
	}
	for _, c := range []struct {
		what string
		log  []byte
		want int64
	}{
		{"no log", nil, 0},
		{"nothing in it", log(), 0},
		{"two transactions", log([2]uint32{7, 0}, [2]uint32{7, 40}, [2]uint32{7, 0}, [2]uint32{7, 41}), 41},
		{"one that is not complete", log([2]uint32{7, 40}, [2]uint32{7, 0}), 40},
		{"frames of an earlier round", log([2]uint32{7, 0}, [2]uint32{7, 12}, [2]uint32{6, 90}, [2]uint32{6, 91}), 12},
		{"only such", log([2]uint32{6, 90}), 0},
		{"a piece of a frame", append(log([2]uint32{7, 12}), 1, 2, 3), 12},
	} {
		if got := pagesByLog(bytes.NewReader(c.log), int64(len(c.log)), page); got != c.want {
			t.Errorf("%s: %d pages, want %d", c.what, got, c.want)
		}
	}
	if got := pagesByLog(bytes.NewReader(log()), 1<<50, 0); got != 0 {
		t.Errorf("a size and a page that cannot be: %d", got)
	}
}
