package config

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A device that becomes a cluster's server has the cluster's settings, and its own where its file sets them.
func TestSettingsOfACluster(t *testing.T) {
	dir := t.TempDir()
	load := func(text, cluster string) Loaded {
		path := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l := Source{Path: path, Cluster: cluster}.Load(time.Now())
		if len(l.Problems) > 0 {
			t.Fatal(l.Problems)
		}
		return l
	}
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("sixteen-letters-or-more\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const database = "postgres://rivulet:pass@db.example/lab?sslmode=verify-full"
	text := load("trust: {mode: group, secretFile: "+secret+"}\nshare: {cpu: 40%, maxPods: 0}\ndatastore: "+database+"\nreserve: {cpu: 1}\nconsole: true\npeerImages: false\n", "").Cluster("shelf")

	got := load("", text).Config
	if got.Name != "shelf" || got.Trust.Mode != TrustGroup || got.Trust.Secret != "sixteen-letters-or-more" || got.Trust.SecretFile != "" ||
		got.Share.CPU != "40%" || got.Share.MaxPods == nil || *got.Share.MaxPods != 0 || got.Datastore != database || got.PeerImages == nil || *got.PeerImages {
		t.Errorf("%+v", got)
	}
	if got.Reserve.CPU != "" || got.Console != nil {
		t.Errorf("settings of the other device: %+v", got)
	}

	l := load("name: mine\ntrust: {mode: ask}\nreserve: {memory: 1Gi}\n", text)
	if got := l.Config; got.Name != "mine" || got.Trust.Mode != TrustAsk || got.Trust.Secret != "" || got.Reserve.Memory != "1Gi" || got.Share.CPU != "40%" {
		t.Errorf("%+v", got)
	}
	if o := l.Origins["share.cpu"].String(); o != "cluster" {
		t.Errorf("share.cpu comes from %q", o)
	}
}
