//go:build !race

package support

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
)

// Of a part that is too long the newest is kept. The rules of redact take the race detector half a minute for it, in one
// goroutine.
func TestAHugePartIsCut(t *testing.T) {
	var b bytes.Buffer
	missing, err := Write(t.Context(), &b, time.Now(), nil, []Part{
		{"huge.txt", func(context.Context) (string, error) { return strings.Repeat("line\n", partMax) + "the newest\n", nil }},
	})
	if err != nil || len(missing) != 0 {
		t.Errorf("%v %v", missing, err)
	}
	if huge := unpack(t, b.Bytes())["huge.txt"]; !strings.HasSuffix(huge, "line\nthe newest\n") || len(huge) > partMax+100 {
		t.Errorf("%d bytes", len(huge))
	}
}
