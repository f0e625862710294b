//go:build !race

package offload

import (
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
)

// TestALostExecSaysWhy is an exec over a link that goes silent: what ends it names the connection.
// Which end of the cut is seen first is a matter of time, which the race detector takes; that it ends, and with an error,
// TestStreams asserts under the detector.
func TestALostExecSaysWhy(t *testing.T) {
	a, b := world(t)
	k := apiserver.StartKubelet(t, b.Server, "b-node")
	begun := make(chan struct{})
	k.Exec(func(_ string, _ []string, in io.Reader, _ io.Writer) error {
		if _, err := io.ReadFull(in, make([]byte, len("half "))); err != nil {
			return err
		}
		close(begun)
		_, err := io.Copy(io.Discard, in)
		return err
	})
	a.offloadNamespace(t, "lab")
	a.ready(t, true)
	a.create(t, bare("talk", corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists}}}))
	a.running(t, "talk", "")

	in, typed := io.Pipe()
	defer typed.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := a.shouts(t.Context(), in)
		ended <- err
	}()
	_, err := io.WriteString(typed, "half ")
	must(t, err)
	select {
	case <-begun:
	case err := <-ended:
		t.Fatal("it ended before it began:", err)
	}
	a.fabric.stall.set(true)
	defer a.fabric.stall.set(false)
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "the connection to b was lost") {
			t.Errorf("an exec that was cut off ends with %v", err)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("an exec hangs over a link that is silent")
	}
}
