package partition

import (
	"context"
	"fmt"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// between is time for TCP to find out that the cable is in again, and for a heartbeat:
// two cuts with less between them are one long silence, which ends streams.
const between = 6 * time.Second

// fileSize is some seconds of copying: the cuts come in its middle.
const fileSize = 384 << 20

// outage is so short that a heartbeat before it and TCP's next try after it leave half of the
// twelve seconds of silence that end streams: a busy machine needs some of them.
const outage = time.Second

// A large file goes to an away pod and comes back while the cable is pulled again and
// again: a silence shorter than the one that ends streams only holds it up, and not a byte
// is lost or there twice.
func TestAFileIsCopiedThroughCuts(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	a, _ := begin(t, ctx)
	kubectl(t, ctx, a, "create namespace copy")
	labtest.CleanUp(t, func(ctx context.Context) { kubectl(t, ctx, a, "delete namespace copy --wait=false") })
	labtest.Must(t, ctx, a, "rivulet", "offload", "copy", "--create", "--when", "remote")
	apply(t, ctx, a, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"box","namespace":"copy"},"spec":{
		"terminationGracePeriodSeconds":0,"nodeSelector":{"kubernetes.io/hostname":"b"},
		"containers":[{"name":"box","image":%q,"command":["sh","-c","busybox ln -s /bin/busybox /tmp/tar; busybox sleep 3600"],
			"env":[{"name":"PATH","value":"/bin:/tmp"}],"volumeMounts":[{"name":"tmp","mountPath":"/tmp"}]}],
		"volumes":[{"name":"tmp","emptyDir":{}}]}}`, mainjob.Image)) // kubectl cp wants a tar
	await.NoError(t, ctx, 2*time.Minute, "the pod answers", func() error {
		if r := labtest.On(t, ctx, a, "rivulet", "kubectl", "exec", "-n", "copy", "box", "--", "tar", "--help"); r.Code != 0 {
			return fmt.Errorf("%s", r.ErrOut)
		}
		return nil
	})
	labtest.Must(t, ctx, a, "sh", "-c", fmt.Sprintf("head -c %d /dev/urandom > /tmp/out", fileSize))
	labtest.CleanUp(t, func(ctx context.Context) { labtest.On(t, ctx, a, "rm", "-f", "/tmp/out", "/tmp/back") })
	for _, way := range []struct{ from, to string }{{"/tmp/out", "copy/box:/tmp/file"}, {"copy/box:/tmp/file", "/tmp/back"}} {
		ended := make(chan labtest.Result, 1)
		begun := time.Now()
		go func() { ended <- labtest.On(t, ctx, a, "rivulet", "kubectl", "cp", way.from, way.to) }()
		cuts, pause := 0, time.Second
		for r := (*labtest.Result)(nil); r == nil; {
			select {
			case got := <-ended:
				if got.Code != 0 {
					t.Fatalf("%s to %s, after %d cuts: %s", way.from, way.to, cuts, got.ErrOut)
				}
				r = &got
			case <-time.After(pause): // of copying
				pause = between
				if err := suite.Lab.Cut("a", "b"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(outage) // that the stream outlives it is the point
				if err := suite.Lab.Heal(); err != nil {
					t.Fatal(err)
				}
				cuts++
			}
		}
		t.Logf("%s to %s: %.1f s, %d cuts", way.from, way.to, time.Since(begun).Seconds(), cuts)
		if cuts == 0 {
			t.Error("it was copied before the cable could be pulled")
		}
	}
	labtest.Must(t, ctx, a, "cmp", "/tmp/out", "/tmp/back")
}
