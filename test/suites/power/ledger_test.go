package power

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// ledger is a pod that appends numbers to a file of its volume, each synced before the
// pod tells it: what it has told must be there after any cut.
type ledger struct {
	mu   sync.Mutex
	told int    // the last number; the pod goes on after it
	n    int    // how many were told
	why  string // how the last run ended
}

const ledgerObjects = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: ledger}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: ledger}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: web, image: %q, volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: ledger}}]
`

// appendNumbers writes numbers from $1 on, until the file cannot be written. A line that a cut left half written ends first.
const appendNumbers = `n=$1; echo >>/data/numbers; while echo $n | busybox dd of=/data/numbers oflag=append conv=notrunc,fsync 2>/dev/null; do echo $n; n=$((n+1)); busybox usleep 20000; done`

func newLedger(t *testing.T, ctx context.Context, a *lab.Device) *ledger {
	t.Helper()
	labtest.Must(t, ctx, a, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", fmt.Sprintf(ledgerObjects, mainjob.Image))
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.On(t, ctx, a, "rivulet", "kubectl", "delete", "pod/ledger", "pvc/ledger", "--now", "--ignore-not-found")
	})
	labtest.Must(t, ctx, a, "rivulet", "kubectl", "wait", "pod/ledger", "--for=condition=Ready", "--timeout=2m")
	return &ledger{}
}

// run has the pod write whenever it can, and reads what it tells.
func (l *ledger) run(ctx context.Context, a *lab.Device) {
	for ctx.Err() == nil {
		l.append(ctx, a)
		pause(ctx, time.Second)
	}
}

// append returns when the pod, or the device, has gone.
func (l *ledger) append(ctx context.Context, a *lab.Device) {
	cmd, err := a.Command(ctx, "rivulet", "kubectl", "exec", "ledger", "--", "busybox", "sh", "-c", appendNumbers, "append", strconv.Itoa(l.last()+1))
	if err != nil {
		return // the device is off
	}
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil || cmd.Start() != nil {
		return
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if n, err := strconv.Atoi(lines.Text()); err == nil {
			l.mu.Lock()
			l.told, l.n = n, l.n+1
			l.mu.Unlock()
		}
	}
	err = cmd.Wait() // it ends with the power
	l.mu.Lock()
	l.why = fmt.Sprintf("%v %s", err, said.String())
	l.mu.Unlock()
}

func (l *ledger) last() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told
}

// writes waits until the pod has told something more.
func (l *ledger) writes(t *testing.T, ctx context.Context) {
	t.Helper()
	before := l.last()
	await.NoError(t, ctx, 3*time.Minute, "the ledger goes on", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.told <= before {
			return errors.New(l.why)
		}
		return nil
	})
}

// whole fails the test where a number is missing that was told. A line that was cut short was not told.
func (l *ledger) whole(t *testing.T, ctx context.Context, a *lab.Device) {
	t.Helper()
	var text string
	await.NoError(t, ctx, 2*time.Minute, "the ledger is read", func() (err error) {
		text, err = a.Kubectl(ctx, "exec", "ledger", "--", "cat", "/data/numbers")
		return err
	})
	have := map[string]bool{}
	for line := range strings.Lines(text) {
		have[strings.TrimSuffix(line, "\n")] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var gone []int
	for n := 1; n <= l.told; n++ {
		if !have[strconv.Itoa(n)] {
			gone = append(gone, n)
		}
	}
	if len(gone) > 0 || l.n == 0 {
		t.Errorf("of %d numbers that were synced and told, %d are gone: %v", l.n, len(gone), gone)
	}
	t.Logf("%d numbers synced by a pod and told, %d lost", l.n, len(gone))
}
