package badinput

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/appliance/state/bolt"
	"rivulet/fabric/peer"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
)

// A state folder that cannot be used is told with a cure, and rivulet ends.
func TestStateFolder(t *testing.T) {
	a, _ := pair(t)
	stop(t, a)
	t.Cleanup(func() { start(t, a) })
	run := func(t *testing.T, dir string) result {
		t.Helper()
		return on(t, a, "rivulet", "run", "--state", dir, "--runtime", "/tmp/run")
	}
	t.Run("a file where the folder should be", func(t *testing.T) {
		must(t, a, "touch", "/tmp/file")
		told(t, run(t, "/tmp/file"), 78, "/tmp/file", "not a directory", "--state")
	})
	t.Run("a folder where the store should be", func(t *testing.T) {
		must(t, a, "mkdir", "-p", "/tmp/folder/state.db")
		told(t, run(t, "/tmp/folder"), 78, "/tmp/folder/state.db", "is a directory")
	})
	t.Run("read-only mount", func(t *testing.T) {
		must(t, a, "sh", "-c", "mkdir -p /mnt/ro && mount -t tmpfs -o ro ro /mnt/ro")
		t.Cleanup(func() { must(t, a, "umount", "/mnt/ro") })
		told(t, run(t, "/mnt/ro"), 1, "read-only file system", "look at the disk")
		told(t, run(t, "/mnt/ro/below"), 1, "read-only file system")
	})
	t.Run("not root", func(t *testing.T) {
		r := on(t, a, "setpriv", "--reuid=65534", "--clear-groups", "rivulet", "run", "--state", "/tmp/nobody")
		told(t, r, 1, "needs root", "sudo rivulet run")
	})
	t.Run("a disk without room leaves no half of a store", func(t *testing.T) {
		must(t, a, "sh", "-c", "mkdir -p /mnt/full && mount -t tmpfs -o size=64k full /mnt/full && dd if=/dev/zero of=/mnt/full/fill bs=4k count=14 2>&1")
		t.Cleanup(func() { must(t, a, "umount", "/mnt/full") })
		told(t, run(t, "/mnt/full"), 1, "no space left", "look at the disk")
		if left := must(t, a, "ls", "/mnt/full"); left != "fill" {
			t.Errorf("left on the disk: %q", left)
		}
	})
}

// A disk that fills up while rivulet runs: the write fails and is told, the store
// stays sound, and goes on when there is room.
func TestDiskFillsUp(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small disk")
	}
	dir := t.TempDir()
	if err := unix.Mount("full", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("needs to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	path := filepath.Join(dir, "state.db")
	s, err := bolt.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	record := func(i int) peer.Record {
		return peer.Record{ID: peer.ID(strings.Repeat("a", 20) + string(rune('a'+i%26)) + string(rune('a'+i/26%26))), Certificate: make([]byte, 2000)}
	}
	for ; ; kept++ {
		if err = s.PutPeer(record(kept)); err != nil {
			break
		}
		if kept == 600 {
			t.Fatal("the disk of 256 kB does not fill up")
		}
	}
	if !strings.Contains(err.Error(), "look at the disk") {
		t.Errorf("the full disk is told as %v", err)
	}
	s.Close()
	if s, err = bolt.Open(path); err != nil {
		t.Fatalf("the store is damaged after the disk was full: %v", err)
	}
	if got, err := s.Peers(); err != nil || len(got) != kept {
		t.Errorf("%d of %d acknowledged records are left (%v)", len(got), kept, err)
	}
	if err := unix.Mount("full", dir, "tmpfs", unix.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	if err := s.PutPeer(record(kept)); err != nil {
		t.Errorf("there is room again, yet: %v", err)
	}
	s.Close()
}

// A damaged store is replaced by its copy: the same cluster with the same peers, and
// status says so. Where the copy is no better it is told with exit code 78, and
// the files are as they were; the cure is followed word by word. Pods of before
// run on untouched all the time.
func TestDamagedStore(t *testing.T) {
	a, b := pair(t)
	pod(t, a, "keeper")
	before := life(t, a, "keeper")
	was, _ := status(t, a)
	stop(t, a)
	path := a.Path(state + "/state.db")
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	put := func(path string, content []byte) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flipped := bytes.Clone(sound)
	for i := 2 * os.Getpagesize(); i < len(flipped); i++ {
		flipped[i] ^= 0x5a
	}
	put(path, flipped)
	start(t, a)
	ready(t, a)
	peered(t, a)
	st, text := status(t, a)
	if st.ID != was.ID || len(st.Peers) != len(was.Peers) {
		t.Errorf("%s with %d peers, was %s with %d", st.ID, len(st.Peers), was.ID, len(was.Peers))
	}
	aside := regexp.MustCompile(state + `/state\.db\.damaged-\S+?Z`).FindString(text)
	if !strings.Contains(text, "[state-recovered]") || !strings.Contains(text, fmt.Sprintf("%d peers", len(was.Peers))) || aside == "" {
		t.Errorf("the status does not tell what was recovered:\n%s", text)
	} else if got, err := os.ReadFile(a.Path(aside)); err != nil || !bytes.Equal(got, flipped) {
		t.Errorf("%s is not the damaged file (%v)", aside, err)
	}
	must(t, a, "rm", aside)
	stop(t, a)

	zeroed := bytes.Clone(sound)
	clear(zeroed[:2*os.Getpagesize()])
	var r result
	for name, content := range map[string][]byte{
		"text": []byte(strings.Repeat("hello ", 5000)), "cut off": sound[:3*os.Getpagesize()], "empty": {},
		"first pages zeroed": zeroed, "data pages flipped": flipped,
	} {
		put(path, content)
		put(bolt.CopyOf(path), content)
		r = on(t, a, "rivulet", "run")
		told(t, r, 78, "damaged", "no better", "mv "+state+"/state.db")
		if after, _ := os.ReadFile(path); !bytes.Equal(after, content) {
			t.Errorf("%s: the file was changed", name)
		}
	}
	cure := regexp.MustCompile(`\((mkdir [^)]+)\)`).FindStringSubmatch(r.errOut)
	if cure == nil {
		t.Fatalf("no command to follow in %q", r.errOut)
	}
	must(t, a, "sh", "-c", cure[1])
	start(t, a)
	ready(t, a)
	if after := life(t, a, "keeper"); after != before {
		t.Errorf("the pod was %s, is %s", before, after)
	}
	if nodes := must(t, a, "rivulet", "kubectl", "get", "nodes", "-l", "!rivulet.dev/virtual-node", "-o", "name"); nodes != "node/pi" {
		t.Errorf("nodes of the new cluster: %s", nodes)
	}
	pod(t, a, "after-the-cure")
	must(t, a, "rivulet", "kubectl", "delete", "pod", "keeper", "after-the-cure", "--wait=false")
	// Who finds a backup has the old identity and its peers back.
	stop(t, a)
	put(path, sound)
	start(t, a)
	if err := b.WaitPeered(limit(t, time.Minute), 1); err != nil {
		t.Fatal(err)
	}
}

// A second run on the same state says who has it and is gone; the first does not notice.
func TestSecondRun(t *testing.T) {
	a, _ := pair(t)
	st, _ := status(t, a)
	for _, args := range [][]string{{"rivulet", "run"}, {"rivulet", "run", "--runtime", "/tmp/other"}} {
		begun := time.Now()
		pid := must(t, a, "cat", "/run/rivulet/supervisor.pid")
		told(t, on(t, a, args...), 78, "already runs here", "pid "+pid, "rivulet status")
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("it took %s to say so", took)
		}
	}
	if now, _ := status(t, a); !now.Ready || now.PIDs["engine"] != st.PIDs["engine"] || now.PIDs["supervisor"] != st.PIDs["supervisor"] {
		t.Errorf("the first was disturbed: %+v, before %+v", now.PIDs, st.PIDs)
	}
}

// Ctrl-C ends rivulet and its engine, and leaves pods and tunnel; they are found
// again untouched.
func TestCtrlC(t *testing.T) {
	a, _ := pair(t)
	pod(t, a, "survivor")
	before := life(t, a, "survivor")
	stop(t, a)
	cmd, err := a.Command(limit(t, 3*time.Minute), "rivulet", "run")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan result, 1)
	go func() { ended <- end(t, cmd) }()
	ready(t, a)
	st, _ := status(t, a)
	begun := time.Now()
	must(t, a, "sh", "-c", "kill -INT $(cat /run/rivulet/supervisor.pid)")
	select {
	case r := <-ended:
		if r.code != 0 || !strings.Contains(r.errOut, "pods and the tunnel stay") {
			t.Errorf("exit code %d after Ctrl-C; the end of what it said: %s", r.code, r.errOut[max(0, len(r.errOut)-500):])
		}
	case <-time.After(20 * time.Second):
		t.Fatal("still running 20 s after Ctrl-C")
	}
	t.Logf("ended %.1f s after Ctrl-C", time.Since(begun).Seconds())
	left := ""
	await.NoError(t, t.Context(), 5*time.Second, "the kernel has ended what depends on it", func() error {
		left = processes(t, a)
		for _, gone := range []string{"rivulet-engine ", "\ncontainerd ", "rivulet run"} {
			if strings.Contains(left, gone) {
				return fmt.Errorf("%q still runs:\n%s", gone, left)
			}
		}
		return nil
	})
	for _, stays := range []string{"containerd-shim-runc-v2", "rivulet-tunnel"} {
		if !strings.Contains(left, stays) {
			t.Errorf("%q is gone; there are:\n%s", stays, left)
		}
	}
	start(t, a)
	ready(t, a)
	if after := life(t, a, "survivor"); after != before {
		t.Errorf("the pod was %s, is %s", before, after)
	}
	if now, _ := status(t, a); now.PIDs["tunnel"] != st.PIDs["tunnel"] {
		t.Errorf("the tunnel's process was %d, is %d", st.PIDs["tunnel"], now.PIDs["tunnel"])
	}
	must(t, a, "rivulet", "kubectl", "delete", "pod", "survivor", "--wait=false")
}

func processes(t *testing.T, d *lab.Device) string {
	t.Helper()
	return "\n" + must(t, d, "sh", "-c", `for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline 2>/dev/null && echo; done`)
}
