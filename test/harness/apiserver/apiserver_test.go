package apiserver

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/test/harness/await"
)

func TestTwoServersAreTwoClusters(t *testing.T) {
	servers := StartAll(t, 2)
	uid := map[string]bool{}
	for _, s := range servers {
		ns, err := s.Client.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		uid[string(ns.UID)] = true
	}
	if len(uid) != 2 {
		t.Fatalf("two servers are %d clusters", len(uid))
	}
}

// The kernel signals a child at the end of the thread that started it, and threads of tests end.
func TestAnEngineOutlivesTheThreadOfItsTest(t *testing.T) {
	var s *Server
	thread := ownThread(func() { s = Start(t) })
	if s == nil {
		return // Start has told why
	}
	await.True(t, 10*time.Second, "the thread has ended", func() bool {
		_, err := os.Stat("/proc/self/task/" + strconv.Itoa(thread))
		return errors.Is(err, fs.ErrNotExist)
	})
	if _, err := s.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context()); err != nil || s.engine.Ended() {
		t.Fatal("the engine has ended with the thread that started it: ", err)
	}
}

// ownThread runs f on a thread that ends with it, and returns the thread's number.
func ownThread(f func()) (thread int) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if thread = unix.Gettid(); thread == os.Getpid() {
			thread = ownThread(f) // the first thread never ends, and is held meanwhile
			return
		}
		f()
	}()
	<-done
	return thread
}
