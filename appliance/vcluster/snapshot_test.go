package vcluster

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/appliance/state/archive"
	"rivulet/appliance/version"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

func (d *device) snapshot(name string) []byte {
	d.t.Helper()
	s, err := d.k.Snapshot(d.t.Context(), name, true)
	must(d.t, err)
	defer s.Close()
	var out bytes.Buffer
	must(d.t, s.Write(d.t.Context(), &out))
	return out.Bytes()
}

func (d *device) restore(from []byte, as string) View {
	d.t.Helper()
	v, err := d.k.Restore(d.t.Context(), bytes.NewReader(from), as)
	must(d.t, err)
	return d.awake(v.Name)
}

// The version of Kubernetes, which the program of a test does not know.
func init() { version.LinkedKubernetes = "v1.35.3+k3s1" }

// TestSnapshot: what is saved comes back on another device under its name, with the credentials
// that it had, and as a copy without them.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	first := newDevice(t, apiserver.Binary(t))
	ctx := t.Context()
	pid := first.create(Spec{Name: "sal", Sleep: DefaultSleep, Memory: 600 << 20}).PID
	put := func(c kubernetes.Interface, name string) {
		t.Helper()
		_, err := c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
	}
	has := func(c kubernetes.Interface, name string) bool {
		t.Helper()
		all, err := c.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		must(t, err)
		return len(all.Items) == 1
	}
	client := first.client("sal")
	put(client, "before")
	// Who asks meanwhile waits, and gets an answer.
	asking, stop := context.WithCancel(ctx)
	asked := make(chan error, 1)
	go func() {
		for {
			if _, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err != nil || asking.Err() != nil {
				asked <- err
				return
			}
		}
	}()
	saved := first.snapshot("sal")
	first.another("sal", pid)
	stop()
	if err := <-asked; err != nil && !strings.Contains(err.Error(), "EOF") && !strings.Contains(err.Error(), "connection reset") { // one that was open
		t.Errorf("a request beside the snapshot: %v", err)
	}
	put(client, "after")

	second := newDevice(t, apiserver.Binary(t))
	v := second.restore(saved, "")
	if v.Name != "sal" || v.Sleep != DefaultSleep || v.Memory != 600<<20 {
		t.Errorf("%+v", v)
	}
	again := second.client("sal")
	if !has(again, "before") || has(again, "after") {
		t.Error("it is not as it was")
	}
	// at is a client with the credentials of the first and the address of another.
	at := func(v View) *kubernetes.Clientset {
		t.Helper()
		cfg := rest.CopyConfig(first.config("sal"))
		cfg.Host = "https://" + v.Address.String()
		c, err := kubernetes.NewForConfig(cfg)
		must(t, err)
		return c
	}
	if !has(at(v), "before") {
		t.Error("a credential from before does not hold")
	}
	copied := second.restore(saved, "sid")
	if !has(second.client("sid"), "before") {
		t.Error("the copy is not as it was")
	}
	if _, err := at(copied).CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err == nil {
		t.Error("the copy takes a credential of the first")
	}
	if a, b := second.record("sal"), second.record("sid"); a.ID == b.ID || a.UID == b.UID || a.ID == first.record("sal").ID {
		t.Errorf("%+v and %+v", a, b)
	}
	if _, err := second.k.Restore(ctx, bytes.NewReader(saved), "sid"); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("over another: %v", err)
	}

	// Asleep or paused it stays so, and needs no start.
	must(t, second.k.Pause("sid"))
	second.is("sid", Paused)
	second.snapshot("sid")
	if v := second.is("sid", Paused); v.PID != 0 {
		t.Errorf("it runs as %d", v.PID)
	}
	second.clean("sal", "sid")
}

func (d *device) record(name string) record {
	d.t.Helper()
	c, err := d.k.get(name)
	must(d.t, err)
	return c.record()
}

// clean fails if there is more in the folder than these, or a copy is left.
func (d *device) clean(names ...string) {
	d.t.Helper()
	entries, err := os.ReadDir(d.k.folder())
	must(d.t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
		if _, err := os.Lstat(filepath.Join(d.k.folder(), e.Name(), "copy")); err == nil {
			d.t.Errorf("a copy of %s is left", e.Name())
		}
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		d.t.Errorf("there are %q, want %q", got, names)
	}
}

// paused makes a virtual cluster that never runs, with something for a datastore.
func (d *device) paused(name string) (datastore string) {
	d.t.Helper()
	_, err := d.k.Create(Spec{Name: name})
	must(d.t, err)
	must(d.t, d.k.Pause(name))
	d.is(name, Paused)
	c, err := d.k.get(name)
	must(d.t, err)
	must(d.t, c.certificates())
	datastore = filepath.Join(c.dataDir(), "db/state.db")
	must(d.t, os.MkdirAll(filepath.Dir(datastore), 0o700))
	must(d.t, os.WriteFile(datastore, []byte(strings.Repeat("what it holds ", 1000)), 0o600))
	return datastore
}

// Whatever the tenant has put in the place of its datastore: nothing else of the device is read.
func TestSnapshotOfATrap(t *testing.T) {
	d := newDevice(t, "/bin/false")
	file := d.paused("eve")
	outside := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(outside, []byte("secret"), 0o600))
	for what, set := range map[string]func() error{
		"a link out":      func() error { return os.Symlink(outside, file) },
		"a link within":   func() error { return os.Symlink("other", file) },
		"a pipe":          func() error { return syscall.Mkfifo(file, 0o600) },
		"a folder":        func() error { return os.Mkdir(file, 0o700) },
		"a file of 1 EiB": func() error { return errFirst(os.WriteFile(file, nil, 0o600), os.Truncate(file, MaxDatastore+1)) },
		"nothing":         func() error { return nil },
		"a link in its path": func() error {
			return errFirst(os.Remove(filepath.Dir(file)), os.Symlink(filepath.Dir(outside), filepath.Dir(file)))
		},
	} {
		must(t, os.RemoveAll(file))
		must(t, set())
		s, err := d.k.Snapshot(t.Context(), "eve", true)
		if err == nil {
			t.Errorf("%s is copied", what)
			s.Close()
		}
		if st, err := os.Lstat(filepath.Dir(file)); err == nil && st.Mode()&os.ModeSymlink != 0 {
			must(t, os.Remove(filepath.Dir(file)))
			must(t, os.Mkdir(filepath.Dir(file), 0o700))
		}
	}
	d.clean("eve")
}

func errFirst(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// A snapshot of a version without an authority of users is restored, with a new one, and as a copy. One with a half of it
// is damaged.
func TestASnapshotWithoutUsers(t *testing.T) {
	d := newDevice(t, "/bin/false")
	d.paused("eve")
	good := d.snapshot("eve")
	without := func(members ...string) io.Reader {
		t.Helper()
		var out bytes.Buffer
		w, err := archive.NewWriter(&out, "", time.Now())
		must(t, err)
		_, err = archive.Read(t.Context(), bytes.NewReader(good), "", func(h *tar.Header, content io.Reader) error {
			raw, err := io.ReadAll(content)
			if err != nil || slices.Contains(members, h.Name) {
				return err
			}
			return w.Bytes(h.Name, raw)
		})
		must(t, err)
		must(t, w.Close())
		return &out
	}
	was, err := d.k.get("eve")
	must(t, err)
	key, err := os.ReadFile(was.keyFile("tls/sa.key"))
	must(t, err)
	must(t, d.k.Delete(t.Context(), "eve"))
	for _, half := range usersMembers {
		if _, err := d.k.Restore(t.Context(), without(half), ""); err == nil || !strings.Contains(err.Error(), half+" is missing") {
			t.Errorf("without %s: %v", half, err)
		}
	}
	for name, as := range map[string]string{"eve": "", "eva": "eva"} {
		v, err := d.k.Restore(t.Context(), without(usersMembers...), as)
		must(t, err)
		must(t, d.k.Pause(v.Name))
		d.is(v.Name, Paused)
		c, err := d.k.get(name)
		must(t, err)
		must(t, c.certificates())
		for _, member := range usersMembers {
			st, err := os.Stat(c.keyFile(member))
			must(t, err)
			if st.Mode().Perm() != 0o640 || int(st.Sys().(*syscall.Stat_t).Gid) != c.record().UID {
				t.Errorf("%s of %s: %v, %+v", member, name, st.Mode(), st.Sys())
			}
		}
		now, err := os.ReadFile(c.keyFile("tls/sa.key"))
		must(t, err)
		if bytes.Equal(key, now) != (as == "") {
			t.Errorf("the key of %s", name)
		}
	}
}

// Whatever is wrong with a snapshot: it is refused, and nothing is left.
func TestAnUnusableSnapshotChangesNothing(t *testing.T) {
	d := newDevice(t, "/bin/false")
	d.paused("eve")
	good := d.snapshot("eve")
	refused := func(what string, raw []byte, as, want string) {
		t.Helper()
		if v, err := d.k.Restore(t.Context(), bytes.NewReader(raw), as); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v %v, want %q", what, v, err, want)
		}
	}
	refused("the name is taken", good, "", "already")
	refused("no name", good, "../eve", "no name")
	refused("nothing", nil, "eva", "too early")
	refused("something else", []byte("some other file"), "eva", "damaged")
	for range 40 {
		refused("cut", good[:rand.IntN(len(good))], "eva", "snapshot cannot be used")
		bad := bytes.Clone(good)
		bad[rand.IntN(len(bad))] ^= 1 << rand.IntN(8)
		if v, err := d.k.Restore(t.Context(), bytes.NewReader(bad), "eva"); err == nil { // a bit that means nothing
			must(t, d.k.Delete(t.Context(), v.Name))
		}
	}
	for what, c := range map[string]struct {
		change func(m *Manifest)
		extra  tar.Header
		want   string
	}{
		"a later format":     {func(m *Manifest) { m.Format++ }, tar.Header{}, "format"},
		"a later Kubernetes": {func(m *Manifest) { m.Kubernetes = "v1.99.0" }, tar.Header{}, "never taken back"},
		"no Kubernetes":      {func(m *Manifest) { m.Kubernetes = "" }, tar.Header{}, "version of Kubernetes"},
		"no memory":          {func(m *Manifest) { m.Spec.Memory = 1 }, tar.Header{}, "does not start"},
		"a claim of no name": {nil, tar.Header{}, "is no name"},
		"a member outside":   {nil, tar.Header{Name: "../../escaped", Typeflag: tar.TypeReg}, "no place"},
		"a member more":      {nil, tar.Header{Name: "db/other", Typeflag: tar.TypeReg}, "no place"},
		"data of no claim":   {nil, tar.Header{Name: "claims/0/00000000", Typeflag: tar.TypeReg}, "no place"},
		"a link":             {nil, tar.Header{Name: "db/state.db-wal", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, "not a file"},
	} {
		var out bytes.Buffer
		w, err := archive.NewWriter(&out, "", time.Now())
		must(t, err)
		_, err = archive.Read(t.Context(), bytes.NewReader(good), "", func(h *tar.Header, content io.Reader) error {
			raw, err := io.ReadAll(content)
			must(t, err)
			if h.Name == snapshotManifest && c.change != nil {
				var m Manifest
				must(t, json.Unmarshal(raw, &m))
				c.change(&m)
				raw, err = json.Marshal(m)
				must(t, err)
			}
			if h.Name == claimsMember && what == "a claim of no name" {
				raw = []byte(`[{"namespace": "../lab", "claim": "data", "name": "data", "volume": "pv"}]`)
			}
			return w.Bytes(h.Name, raw)
		})
		must(t, err)
		if c.extra.Name != "" {
			must(t, w.Header(&c.extra))
		}
		must(t, w.Close())
		refused(what, out.Bytes(), "eva", c.want)
	}
	d.clean("eve")

	// One that was cut short by the supervisor's end is gone at the next start.
	must(t, os.MkdirAll(filepath.Join(d.k.folder(), restorePrefix+"1/root"), 0o700))
	must(t, os.MkdirAll(filepath.Join(d.k.folder(), "eve/copy"), 0o700))
	half := d.record("eve")
	half.Name, half.Restoring, half.Port = "half", true, half.Port+1
	must(t, d.k.save(half))
	d.stop()
	d.start()
	d.is("eve", Paused)
	await.Empty(d.t, patience, "what was not whole is gone", func(context.Context) string {
		if _, err := d.k.Get("half"); err == nil {
			return "it is there"
		}
		return ""
	})
	d.clean("eve")
	// A folder that cannot be read is nobody's to write over.
	d.stop()
	must(t, os.WriteFile(filepath.Join(d.k.folder(), "eve", recordName), []byte("{"), 0o600))
	d.start()
	if _, err := d.k.Create(Spec{Name: "eve"}); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("over one that cannot be read: %v", err)
	}
}
