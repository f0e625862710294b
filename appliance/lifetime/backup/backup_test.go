package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/state/bolt"
)

func options() Options { return Options{Kubernetes: ours, Now: then} }

func TestRestoredElsewhereItIsTheSameCluster(t *testing.T) {
	for _, passphrase := range []string{"", "correct horse"} {
		src := source(device(t, "kitchen", 50), "kitchen")
		src.Passphrase = passphrase
		stream := save(t, src)
		if strings.Contains(string(stream), "kitchen's token") {
			t.Error("the stream is not even packed")
		}
		dir := t.TempDir()
		to := Paths{State: filepath.Join(dir, "var/state"), Config: filepath.Join(dir, "etc/rivulet"), Node: filepath.Join(dir, "node")}
		o := options()
		o.Passphrase = passphrase
		r, err := Restore(t.Context(), bytes.NewReader(stream), to, o)
		must(t, err)
		if r.Manifest.Node != "kitchen" || r.Manifest.Format != Format || r.Aside != "" {
			t.Errorf("%+v", r)
		}
		for name, want := range map[string]string{
			"k3s/server/token":                     "kitchen's token",
			"k3s/server/networks.json":             "kitchen's networks",
			"k3s/server/tls/server-ca.key":         "kitchen's key",
			"k3s/server/manifests/mine.yaml":       "user's",
			"k3s/server/tls/client-ca.crt":         "authority",
			"k3s-node/password":                    "kitchen's password",
			"storage/default_data/file\nwith\"all": "kitchen's data",
		} {
			if got := read(t, filepath.Join(to.State, name)); got != want {
				t.Errorf("%q: %q, want %q", name, got, want)
			}
		}
		for _, name := range []string{"k3s/server/tls/temporary-certs", "k3s/server/cred/admin.kubeconfig", "k3s/server/tls/client-admin.crt", "k3s/server/manifests/rivulet-engine.yaml", workDir} {
			if _, err := os.Lstat(filepath.Join(to.State, name)); err == nil {
				t.Errorf("%s is there, it belongs to the old device or to nobody", name)
			}
		}
		if got := read(t, filepath.Join(to.Config, configFile)); got != "# mine\nname: kitchen\ntrust:\n  mode: lan\n" {
			t.Errorf("configuration: %q", got)
		}
		st, err := bolt.Open(filepath.Join(to.State, storeName))
		must(t, err)
		if id, _ := st.Identity(); string(id) != "kitchen's identity" {
			t.Errorf("identity %q", id)
		}
		st.Close()
		checkMovedOn(t, filepath.Join(to.State, "k3s/server/db/state.db"), 51)
		settled(t, to)
	}
}

// Of a cluster in an SQL server the way to its objects is saved, and a restore leads to nothing else.
func TestObjectsInAnSQLServer(t *testing.T) {
	from, to := device(t, "kitchen", 0), device(t, "attic", 50)
	must(t, os.RemoveAll(filepath.Join(from.State, "k3s/server/db")))
	write(t, filepath.Join(from.State, sqlName), `{"token":"secret","database":"PostgreSQL at db:5432, database lab"}`)
	stream := save(t, source(from, "kitchen"))
	o := options()
	o.Over = true
	r, err := Restore(t.Context(), bytes.NewReader(stream), to, o)
	must(t, err)
	if r.Manifest.SQL != "PostgreSQL at db:5432, database lab" {
		t.Errorf("%+v", r.Manifest)
	}
	if got := read(t, filepath.Join(to.State, sqlName)); got != read(t, filepath.Join(from.State, sqlName)) {
		t.Errorf("%q", got)
	}
	if _, err := os.Stat(filepath.Join(to.State, "k3s/server/db/state.db")); err == nil {
		t.Error("the cluster before is still in its file")
	}
	// And back: the way to the database goes with the cluster that it belongs to.
	o.Now = o.Now.Add(time.Hour)
	r, err = Restore(t.Context(), bytes.NewReader(save(t, source(device(t, "attic", 50), "attic"))), to, o)
	must(t, err)
	if _, err := os.Stat(filepath.Join(to.State, sqlName)); err == nil {
		t.Error("the way to the database is still there")
	}
	if _, err := os.Stat(filepath.Join(r.Aside, sqlName)); err != nil {
		t.Error(err)
	}
}

// Watches of before the restore must be answered "too old", wherever they stood.
func checkMovedOn(t *testing.T, path string, last int64) {
	t.Helper()
	db, err := datastore.Open(path, "rw")
	must(t, err)
	defer db.Close()
	var current, compacted, rows int64
	must(t, db.QueryRow("SELECT MAX(id) FROM kine").Scan(&current))
	must(t, db.QueryRow("SELECT prev_revision FROM kine WHERE name = 'compact_rev_key'").Scan(&compacted))
	must(t, db.QueryRow("SELECT COUNT(*) FROM kine WHERE name LIKE '/registry/%' AND value = 'kitchen'").Scan(&rows))
	if current != last+1_000_000_000 || compacted != current || rows != last-1 {
		t.Errorf("revision %d, compacted %d, %d objects; want %d, the same, %d", current, compacted, rows, last+1_000_000_000, last-1)
	}
	// The next write comes after the leap, or the engine would wait to fill the gap.
	res, err := db.Exec("INSERT INTO kine(name) VALUES('next')")
	must(t, err)
	if id, _ := res.LastInsertId(); id != current+1 {
		t.Errorf("the next revision is %d, want %d", id, current+1)
	}
}

func TestRestoredOverAnotherClusterSetsItAside(t *testing.T) {
	stream := save(t, source(device(t, "kitchen", 5), "kitchen"))
	at := device(t, "cellar", 3)
	before := contents(t, at)
	_, err := Restore(t.Context(), bytes.NewReader(stream), at, options())
	if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "--yes") {
		t.Fatalf("%v, want %v and how to go on", err, ErrExists)
	}
	same(t, before, contents(t, at))

	o := options()
	o.Over, o.Name = true, "attic"
	r, err := Restore(t.Context(), bytes.NewReader(stream), at, o)
	must(t, err)
	for name, want := range map[string]string{
		"k3s/server/token":          "kitchen's token",
		"k3s-node/password":         "kitchen's password",
		"k3s/agent/images/x.tar":    "image",
		"../etc/registries.yaml":    "mirrors: {}\n",
		"../etc/" + configFile:      "# mine\nname: attic\ntrust:\n  mode: lan\n",
		"../node/password":          "kitchen's password",
		"storage/default_data/none": "",
	} {
		if want == "" {
			continue
		}
		if got := read(t, filepath.Join(at.State, name)); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{
		"k3s/server/token":                     "cellar's token",
		"snapshots/datastore-x.db.zst":         "cellar's",
		"k3s/agent/client-ca.crt":              "cellar's",
		"k3s-node/password":                    "cellar's password",
		storeName:                              before["state/state.db"],
		storeName + ".copy":                    before["state/state.db.copy"],
		"k3s/server/db/state.db":               before["state/k3s/server/db/state.db"],
		"storage/default_data/file\nwith\"all": "cellar's data",
	} {
		if got := read(t, filepath.Join(r.Aside, name)); got != want {
			t.Errorf("set aside %q: not what it was", name)
		}
	}
	if got := read(t, filepath.Join(at.Config, filepath.Base(r.Aside), configFile)); !strings.Contains(got, "name: cellar") {
		t.Errorf("configuration set aside: %q", got)
	}
	if _, err := os.Lstat(filepath.Join(at.State, "k3s/agent/client-ca.crt")); err == nil {
		t.Error("the agent keeps a certificate of the old cluster")
	}
}

func TestARunningRivuletIsNotRestoredOver(t *testing.T) {
	stream := save(t, source(device(t, "kitchen", 5), "kitchen"))
	at := device(t, "cellar", 3)
	st, err := bolt.Open(filepath.Join(at.State, storeName))
	must(t, err)
	defer st.Close()
	o := options()
	o.Over = true
	if _, err := Restore(t.Context(), bytes.NewReader(stream), at, o); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("%v, want that it runs", err)
	}
}

// Whatever is wrong with the stream: it says so, and nothing was touched.
func TestAnUnusableStreamChangesNothing(t *testing.T) {
	from := device(t, "kitchen", 5)
	plain := save(t, source(from, "kitchen"))
	sealed := source(from, "kitchen")
	sealed.Passphrase = "correct horse"
	crypted := save(t, sealed)
	with := func(change func(*Manifest)) []byte {
		src := source(from, "kitchen")
		change(&src.Manifest)
		return save(t, src)
	}
	at := device(t, "cellar", 3)
	before := contents(t, at)
	cases := []struct {
		name   string
		stream []byte
		pass   string
		words  string
	}{
		{"empty", nil, "", "ends too early"},
		{"not a backup", []byte("hello, this is a text\n"), "", "damaged"},
		{"newer Kubernetes", with(func(m *Manifest) { m.Kubernetes = "v1.36.1+k3s1" }), "", "v1.36.1"},
		{"strange Kubernetes", with(func(m *Manifest) { m.Kubernetes = "dev" }), "", "version of Kubernetes"},
		{"state.db of another node", with(func(m *Manifest) { m.Node = "other" }), "", "state.db is of node"},
		{"encrypted, no passphrase", crypted, "", "--passphrase-file"},
		{"encrypted, wrong passphrase", crypted, "wrong", "does not fit"},
		{"plain in place of an encrypted one", plain, "correct horse", "leave --passphrase-file out"},
		{"something follows", append(bytes.Clone(plain), "more"...), "", "damaged"},
		{"two in a row", append(bytes.Clone(plain), plain...), "", "ends too early"},
	}
	for _, end := range []int{1, 2, 10, 50, 90, 99} {
		cases = append(cases, struct {
			name   string
			stream []byte
			pass   string
			words  string
		}{"cut short", plain[:len(plain)*end/100], "", "ends too early"})
	}
	cases = append(cases, struct {
		name   string
		stream []byte
		pass   string
		words  string
	}{"one byte is missing", plain[:len(plain)-1], "", ""}, struct {
		name   string
		stream []byte
		pass   string
		words  string
	}{"sealed, cut short", crypted[:len(crypted)/2], "correct horse", ""})
	for _, tc := range cases {
		o := options()
		o.Over, o.Passphrase = true, tc.pass
		_, err := Restore(t.Context(), bytes.NewReader(tc.stream), at, o)
		if !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), tc.words) || !strings.Contains(err.Error(), "; ") {
			t.Errorf("%s: %v; want %v, %q and a cure", tc.name, err, ErrUnusable, tc.words)
		}
	}
	same(t, before, contents(t, at))
}

// A bit that is wrong anywhere is either noticed or (one of those that mean nothing)
// changes nothing.
func TestABitIsWrong(t *testing.T) {
	plain := save(t, source(device(t, "kitchen", 5), "kitchen"))
	want := ""
	for i := -1; i < len(plain); i += max(1, len(plain)/150) {
		bad := bytes.Clone(plain)
		if i >= 0 {
			bad[i] ^= 1 << (i % 8)
		}
		dir := t.TempDir()
		_, err := stage(t.Context(), bytes.NewReader(bad), "", ours, dir)
		if err != nil {
			if !errors.Is(err, ErrUnusable) {
				t.Errorf("byte %d: %v, want %v", i, err, ErrUnusable)
			}
			continue
		}
		got := fmt.Sprint(contents(t, Paths{State: filepath.Join(dir, serverDir), Config: filepath.Join(dir, configDir)}))
		if i < 0 {
			want = got
		} else if got != want {
			t.Errorf("byte %d: other content, and nobody noticed", i)
		}
	}
}

func TestANewerFormatIsRefusedByItsManifestAlone(t *testing.T) {
	raw, _ := json.Marshal(Manifest{Format: Format + 1, Rivulet: "v9"})
	var m Manifest
	must(t, json.Unmarshal(raw, &m))
	if err := m.check(ours); !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), "rivulet v9 or newer") {
		t.Errorf("%v", err)
	}
}

// What a stream of a hostile author names must not lead out of where it is unpacked.
func TestNamesStayBelowTheirPlace(t *testing.T) {
	for _, name := range []string{"../x", "/etc/passwd", "server/../../x", "server", "etc", "other/x", "", ".", "server//x", "state.db/x"} {
		if known(name) {
			t.Errorf("%q is taken", name)
		}
	}
	for _, name := range []string{"server/tls/x", "server/tls/", "etc/config.yaml", "storage/a", "state.db"} {
		if !known(name) {
			t.Errorf("%q is refused", name)
		}
	}
}

func TestThereIsNothingToSave(t *testing.T) {
	p := device(t, "kitchen", 5)
	must(t, os.Remove(filepath.Join(p.State, "k3s/server/db/state.db")))
	err := Write(context.Background(), &bytes.Buffer{}, source(p, "kitchen"))
	if err == nil || !strings.Contains(err.Error(), "wait until") {
		t.Errorf("%v, want a cure", err)
	}
}

// What a pod writes into its volume does not keep the device without a backup: a volume that is too deep is left out and
// named, and the rest can be read back.
func TestAVolumeThatCannotBeSaved(t *testing.T) {
	p := device(t, "kitchen", 5)
	deep := filepath.Join(p.State, "storage/lab_deep")
	must(t, os.MkdirAll(deep, 0o700))
	write(t, filepath.Join(deep, "first"), "would be a part of it")
	at, err := os.OpenRoot(deep)
	must(t, err)
	for range 300 {
		must(t, at.Mkdir("d", 0o700))
		below, err := at.OpenRoot("d")
		must(t, err)
		at.Close()
		at = below
	}
	at.Close()
	src, left := source(p, "kitchen"), map[string]string{}
	src.LeftOut = func(what, why string) { left[what] = why }
	file, err := os.Create(filepath.Join(t.TempDir(), "backup"))
	must(t, err)
	defer file.Close()
	must(t, WriteFile(t.Context(), file, src))
	if len(left) != 1 || !strings.Contains(left["volume lab_deep"], "256 folders") {
		t.Errorf("left out: %v", left)
	}
	staged := t.TempDir()
	_, err = file.Seek(0, io.SeekStart)
	must(t, err)
	_, err = stage(t.Context(), file, "", ours, staged)
	must(t, err)
	if got := read(t, filepath.Join(staged, "storage/default_data/file\nwith\"all")); got != "kitchen's data" {
		t.Errorf("the other volume: %q", got)
	}
	if _, err := os.Lstat(filepath.Join(staged, "storage/lab_deep")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the volume that was left out: %v", err)
	}
}

// A stream of the version before, with a list of checksums, is restored as well; a member behind a link, and one that comes
// twice, are not.
func TestStreamsOfOthers(t *testing.T) {
	plain := save(t, source(device(t, "kitchen", 5), "kitchen"))
	changed := func(list bool, change func(*tar.Header) []*tar.Header) []byte {
		unpacked, err := zstd.NewReader(bytes.NewReader(plain))
		must(t, err)
		defer unpacked.Close()
		var out, sums bytes.Buffer
		packed, err := zstd.NewWriter(&out)
		must(t, err)
		w := tar.NewWriter(packed)
		for in := tar.NewReader(unpacked); ; {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			content, err := io.ReadAll(in)
			must(t, err)
			if h.Name == "SHA256" && list {
				h.Name, h.Size, content = "SHA256SUMS", int64(sums.Len()), sums.Bytes()
			}
			for _, h := range change(h) {
				must(t, w.WriteHeader(h))
				if h.Typeflag == tar.TypeReg {
					_, err = w.Write(content)
					must(t, err)
				}
			}
			if name := h.Name; h.Typeflag == tar.TypeReg {
				if strings.ContainsAny(name, "\n\"") {
					name = strconv.Quote(name)
				}
				fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), name)
			}
		}
		must(t, w.Close())
		must(t, packed.Close())
		return out.Bytes()
	}
	try := func(stream []byte) error {
		_, err := stage(t.Context(), bytes.NewReader(stream), "", ours, t.TempDir())
		return err
	}
	must(t, try(changed(true, func(h *tar.Header) []*tar.Header { return []*tar.Header{h} })))
	must(t, try(changed(false, func(h *tar.Header) []*tar.Header { return []*tar.Header{h} })))
	for words, change := range map[string]func(*tar.Header) []*tar.Header{
		"is in it twice": func(h *tar.Header) []*tar.Header {
			if h.Name == "storage/default_data" {
				link := *h
				link.Typeflag, link.Linkname = tar.TypeSymlink, "../server"
				return []*tar.Header{&link, h}
			}
			return []*tar.Header{h}
		},
		"is behind a link": func(h *tar.Header) []*tar.Header {
			if h.Name == "storage/default_data" {
				link := *h
				link.Typeflag, link.Linkname = tar.TypeSymlink, "../server"
				return []*tar.Header{&link}
			}
			return []*tar.Header{h}
		},
		"another checksum": func(h *tar.Header) []*tar.Header {
			if h.Name == "storage/default_data" {
				more := *h
				more.Name = "storage/default_more"
				return []*tar.Header{h, &more}
			}
			return []*tar.Header{h}
		},
	} {
		if err := try(changed(false, change)); !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want %q", err, words)
		}
	}
}

// Virtual clusters come back in the place of those that are there. When an upgrade is undone, those that its snapshot does
// not have stay where they are. One that cannot be saved is named, and a stream without any leaves them as they are.
func TestVirtualClusters(t *testing.T) {
	src := source(device(t, "kitchen", 5), "kitchen")
	left := map[string]string{}
	src.LeftOut = func(name, why string) { left[name] = why }
	without := save(t, src)
	src.VClusters = func(out io.Writer) error {
		w := tar.NewWriter(out)
		for name, content := range map[string]string{"ann/vcluster.json": `{"name":"ann","uid":7}`, "ann/root/data/db/state.db": "objects", ".left-out/ben": "it is a pipe"} {
			must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(content))}))
			_, err := w.Write([]byte(content))
			must(t, err)
		}
		return w.Close()
	}
	stream := save(t, src)
	if len(left) != 1 || left["virtual cluster ben"] != "it is a pipe" {
		t.Errorf("left out: %v", left)
	}
	for _, undo := range []bool{false, true} {
		to := device(t, "attic", 5)
		write(t, filepath.Join(to.State, "vclusters/carl/vcluster.json"), "carl's")
		write(t, filepath.Join(to.State, "vclusters/ann/vcluster.json"), "ann's, of the new version")
		write(t, filepath.Join(to.State, "vclusters/dora/vcluster.json"), `{"name":"dora","uid":7}`) // made when ann had been deleted
		o := options()
		o.Over, o.DataOnly = true, undo
		_, err := Restore(t.Context(), bytes.NewReader(without), to, o)
		must(t, err)
		if got := read(t, filepath.Join(to.State, "vclusters/carl/vcluster.json")); got != "carl's" {
			t.Errorf("a stream without virtual clusters leaves %q", got)
		}
		o.Now = o.Now.Add(time.Hour)
		r, err := Restore(t.Context(), bytes.NewReader(stream), to, o)
		must(t, err)
		for name, want := range map[string]string{"vclusters/ann/vcluster.json": `{"name":"ann","uid":7}`, "vclusters/ann/root/data/db/state.db": "objects"} {
			if got := read(t, filepath.Join(to.State, name)); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		carl := map[bool]string{false: r.Aside, true: to.State}[undo] // the snapshot left it out, or it was made since
		if got := read(t, filepath.Join(carl, "vclusters/carl/vcluster.json")); got != "carl's" {
			t.Errorf("undo %v: %q in %s", undo, got, carl)
		}
		if _, err := os.Lstat(filepath.Join(to.State, "vclusters/carl")); (err == nil) != undo {
			t.Errorf("undo %v: a virtual cluster of before: %v", undo, err)
		}
		if got := read(t, filepath.Join(r.Aside, "vclusters/dora/vcluster.json")); !strings.Contains(got, "dora") {
			t.Errorf("undo %v: %q", undo, got)
		}
		if _, err := os.Lstat(filepath.Join(to.State, "vclusters/dora")); err == nil {
			t.Errorf("undo %v: two virtual clusters have one user", undo)
		}
		if got := read(t, filepath.Join(r.Aside, "vclusters/ann/vcluster.json")); got != "ann's, of the new version" {
			t.Errorf("undo %v: set aside: %q", undo, got)
		}
	}
	src.VClusters = func(io.Writer) error { return errors.New("the supervisor has gone") }
	if err := Write(t.Context(), io.Discard, src); err == nil || !strings.Contains(err.Error(), "has gone") {
		t.Errorf("cut short: %v", err)
	}
}
