package ops

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/releases"
)

// window is twice what an engine needs to start in on a quiet machine; on a busy one
// give it more.
var window = orDefault(os.Getenv("OPS_WINDOW"), "36s")

func orDefault(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

// The main story: b gets another version and keeps its pods; then a dies, and its
// cluster lives on on c, while b refuses what is no good and comes back from a
// version that ends by itself.
func TestStory(t *testing.T) {
	ctx := suite.Bounded(t, 9*time.Minute)
	keepB := deploy(t, ctx, b, "keep", 2)
	file, next, now := other(t, ctx)
	before := runs(t, ctx, b, now)

	var s saved
	atOnce(t, map[string]func(*testing.T){
		"b is upgraded": func(t *testing.T) { good(t, ctx, file) },
		"a is saved":    func(t *testing.T) { s = saveUnderLoad(t, ctx) },
	})
	after := runs(t, ctx, b, next)
	if got := containers(t, ctx, b, "keep", 2); !maps.Equal(got, keepB) {
		t.Errorf("containers of b are %v, they were %v", got, keepB)
	}
	if after.PIDs["tunnel"] != before.PIDs["tunnel"] || after.PIDs["tunnel"] == 0 {
		t.Errorf("the tunnel's process is %d, it was %d: it should be adopted", after.PIDs["tunnel"], before.PIDs["tunnel"])
	}
	if out := labtest.Must(t, ctx, b, "rivulet", "upgrade"); !strings.Contains(out, now+" → "+next) {
		t.Errorf("rivulet upgrade: %s", out)
	}

	atOnce(t, map[string]func(*testing.T){
		"b is given bad versions":  func(t *testing.T) { crashing(t, ctx, next, keepB) },
		"a dies and lives on on c": func(t *testing.T) { elsewhere(t, ctx, s) },
	})
}

// atOnce runs subtests beside each other and stops the test if one failed.
func atOnce(t *testing.T, tests map[string]func(*testing.T)) {
	t.Helper()
	t.Run("at once", func(t *testing.T) {
		for name, f := range tests {
			t.Run(name, func(t *testing.T) { t.Parallel(); f(t) })
		}
	})
	if t.Failed() {
		t.FailNow()
	}
}

// good upgrades b.
func good(t *testing.T, ctx context.Context, file string) {
	labtest.Must(t, ctx, b, "rivulet", "upgrade", "--older", "--check", file)
	if said, err := b.Run(ctx, "rivulet", "upgrade", "--older", "--wait", "--window", window, "--every", "3s", file); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
}

// What is no good is refused before anything happens; a version that ends by itself
// with a code after which systemd starts nothing again is undone with its data.
func crashing(t *testing.T, ctx context.Context, now string, keep map[string]string) {
	v := releases.Kubernetes(t, releases.Binary("v2/rivulet"))
	truncate := func(raw []byte) []byte { return raw[:len(raw)/2] }
	flip := func(raw []byte) []byte { raw[len(raw)/3] ^= 1; return raw }
	for name, tc := range map[string]struct{ file, words string }{
		"truncated":    {releases.Sign(t, dir, releases.Binary("v2/rivulet"), "truncated", releases.Root, truncate), "damaged or was changed"},
		"a bit wrong":  {releases.Sign(t, dir, releases.Binary("v2/rivulet"), "flipped", releases.Root, flip), "damaged or was changed"},
		"strange key":  {releases.Sign(t, dir, releases.Binary("v2/rivulet"), "strange", releases.Strange, nil), "vouches"},
		"runs already": {releases.Sign(t, dir, binaryOf(now), "same", releases.Root, nil), "runs already"},
		"older":        {releases.Faulty(t, dir, "older", "78", "v1.34.1-k3s1"), "never taken back"},
		"skips":        {releases.Faulty(t, dir, "skips", "78", "v1.37.0-k3s1"), "no minor version may be left out"},
	} {
		t.Logf("b is given what is no good: %s", name)
		refused(t, ctx, b, []string{tc.words}, "rivulet", "upgrade", tc.file)
	}
	labtest.Must(t, ctx, b, "rivulet", "kubectl", "create", "configmap", "before-the-trial")
	file := releases.Faulty(t, dir, "v3-crash", "78", v)
	said, err := b.Run(ctx, "rivulet", "upgrade", "--wait", "--window", "1m", "--every", "1s", file)
	if err == nil || !strings.Contains(said, "ended by itself 3 times, the last time with exit code 78") {
		t.Errorf("a version that ends by itself: %v %s", err, said)
	}
	st := runs(t, ctx, b, now)
	if text := health(st, "upgrade-undone"); !strings.Contains(text, "v3-crash") || !strings.Contains(text, "before-rollback-") {
		t.Errorf("status says %q of it", text)
	}
	labtest.Must(t, ctx, b, "rivulet", "kubectl", "get", "configmap", "before-the-trial")
	if got := containers(t, ctx, b, "keep", 2); !maps.Equal(got, keep) {
		t.Errorf("containers of b are %v, they were %v", got, keep)
	}
}

const backupFile = "/var/lib/a.backup"

// saved is what is known of a when it is saved.
type saved struct {
	st   status
	pods map[string]string
}

// saveUnderLoad saves a while objects are written.
func saveUnderLoad(t *testing.T, ctx context.Context) saved {
	s := saved{pods: deploy(t, ctx, a, "keep", 2)}
	var err error
	if s.st, err = look(ctx, a); err != nil {
		t.Fatal(err)
	}
	var items []string
	for i := range 150 {
		items = append(items, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"load-%d"},"data":{"x":%q}}`, i, strings.Repeat("x", 2000)))
	}
	list := fmt.Sprintf(`{"apiVersion":"v1","kind":"List","items":[%s]}`, strings.Join(items, ","))
	if err := os.WriteFile(a.Path("/root/load.json"), []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := a.Kubectl(ctx, "create", "-f", "/root/load.json")
		done <- err
	}()
	n := 0
	for busy := true; busy; n++ {
		select {
		case err := <-done:
			busy = false
			if err != nil {
				t.Fatal(err)
			}
		default:
		}
		labtest.Must(t, ctx, a, "rivulet", "backup", "--force", backupFile)
	}
	t.Logf("%d backups while 150 objects were written", n)
	if fi, err := os.Stat(a.Path(backupFile)); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the backup's mode is %v %v, it holds keys", fi.Mode(), err)
	}
	labtest.Must(t, ctx, a, "sh", "-c", "echo 'correct horse' > /root/pass; rivulet backup --passphrase-file /root/pass - > /var/lib/sealed.backup")
	return s
}

// elsewhere brings a's cluster back on c, which never saw it, when a is dead.
func elsewhere(t *testing.T, ctx context.Context, s saved) {
	for _, f := range []string{backupFile, "/var/lib/sealed.backup"} {
		bring(t, a, f, c)
	}
	if err := a.Kill(ctx, "power"); err != nil {
		t.Fatal(err)
	}
	own, err := look(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(c.Path(backupFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.Path("/var/lib/cut.backup"), raw[:len(raw)*2/3], 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, ctx, c, []string{"stop it first"}, "rivulet", "restore", "--yes", backupFile)
	if err := c.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	refused(t, ctx, c, []string{"--yes"}, "rivulet", "restore", backupFile)
	refused(t, ctx, c, []string{"ends too early", "nothing was changed"}, "rivulet", "restore", "--yes", "/var/lib/cut.backup")
	refused(t, ctx, c, []string{"--passphrase-file"}, "rivulet", "restore", "--yes", "/var/lib/sealed.backup")
	labtest.Must(t, ctx, c, "sh", "-c", "echo 'correct horse' > /root/pass")
	said := labtest.Must(t, ctx, c, "rivulet", "restore", "--yes", "--name", "attic", "--passphrase-file", "/root/pass", "/var/lib/sealed.backup")
	if !strings.Contains(said, "before-restore-") || !strings.Contains(said, "must not run") {
		t.Errorf("restore said: %s", said)
	}
	begun := time.Now()
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 0, "c is a's cluster and peered with b", func() error {
		st, err := look(ctx, c)
		if err != nil {
			return err
		}
		if st.ID != s.st.ID || st.Node != "a" || !st.Ready {
			return fmt.Errorf("id %s, node %s, ready %v", st.ID, st.Node, st.Ready)
		}
		return nil
	})
	pods := containers(t, ctx, c, "keep", 2)
	for uid := range s.pods {
		if pods[uid] == "" {
			t.Errorf("pod %s is not the same pod on the new hardware: %v", uid, pods)
		}
	}
	if n := labtest.Must(t, ctx, c, "sh", "-c", "rivulet kubectl get configmaps -o name | grep -c /load-"); n != "150" {
		t.Errorf("%s of 150 objects came back", n)
	}
	await.NoError(t, ctx, 0, "b is connected with it, by its new name", func() error {
		st, err := look(ctx, b)
		if err != nil {
			return err
		}
		for _, p := range st.Peers {
			if p.ID == s.st.ID && p.State == "Connected" && p.Name == "attic" {
				return nil
			}
		}
		return fmt.Errorf("b sees %+v", st.Peers)
	})
	await.NoError(t, ctx, 0, "b is a ready node there", func() error {
		out, err := c.Kubectl(ctx, "get", "node", "b", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && out != "True" {
			err = fmt.Errorf("Ready is %s", out)
		}
		return err
	})
	t.Logf("from start to peered again: %.1f s", time.Since(begun).Seconds())
	if old, err := os.ReadDir(c.Path("/var/lib/rivulet")); err != nil || !hasAside(old) {
		t.Errorf("c's own cluster %s was not set aside: %v %v", own.ID, old, err)
	}
}

func hasAside(entries []os.DirEntry) bool {
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "before-restore-") {
			return true
		}
	}
	return false
}
