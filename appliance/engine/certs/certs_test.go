package certs

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/state/durable"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const year = 365 * 24 * time.Hour

// database is a Datastore in memory.
type database map[string][]byte

func (d database) Delete(prefix string, match func(string, []byte) bool) (n int, err error) {
	for k, v := range d {
		if strings.HasPrefix(k, prefix) && (match == nil || match(k, v)) {
			delete(d, k)
			n++
		}
	}
	return n, nil
}

// k3s is a data folder as k3s makes it, by its rules: a certificate begins when its
// authority does, and ends a year after it was made.
type k3s struct {
	t   *testing.T
	dir string
}

func newK3s(t *testing.T) k3s { return k3s{t, t.TempDir()} }

func (k k3s) tls(name string) string { return filepath.Join(k.dir, "server", "tls", name) }

func (k k3s) write(path string, content []byte) {
	k.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		k.t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		k.t.Fatal(err)
	}
}

func (k k3s) key() (crypto.Signer, []byte) {
	k.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		k.t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		k.t.Fatal(err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

func (k k3s) sign(template, parent *x509.Certificate, public crypto.PublicKey, by crypto.Signer) []byte {
	k.t.Helper()
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	if err != nil {
		k.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// authority is made by k3s at the given time, unless there is one.
func (k k3s) authority(name string, at time.Time) {
	if _, err := os.Stat(k.tls(name + ".key")); err == nil {
		return
	}
	key, raw := k.key()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "k3s-" + filepath.Base(name) + "@1"}, NotBefore: at, NotAfter: at.Add(10 * year),
		KeyUsage: x509.KeyUsageKeyEncipherment | x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	k.write(k.tls(name+".crt"), k.sign(template, template, key.Public(), key))
	k.write(k.tls(name+".key"), raw)
}

// leaf is made by k3s at the given time, unless there is one with 120 days to go.
func (k k3s) leaf(path, authority string, at time.Time) {
	k.t.Helper()
	if c, err := readCertificate(path); err == nil && c.NotAfter.Sub(at) > 120*24*time.Hour {
		return
	}
	ca, by := k.load(authority)
	key, raw := k.key()
	template := &x509.Certificate{Subject: pkix.Name{CommonName: filepath.Base(path)}, NotBefore: ca.NotBefore, NotAfter: at.Add(year),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, DNSNames: []string{"localhost"}}
	k.write(path, k.sign(template, ca, key.Public(), by))
	k.write(strings.TrimSuffix(path, ".crt")+".key", raw)
}

func (k k3s) load(authority string) (*x509.Certificate, crypto.Signer) {
	k.t.Helper()
	certs, err := cert.CertsFromFile(k.tls(authority + ".crt"))
	if err != nil {
		k.t.Fatal(err)
	}
	key, err := keyutil.PrivateKeyFromFile(k.tls(authority + ".key"))
	if err != nil {
		k.t.Fatal(err)
	}
	return certs[0], key.(crypto.Signer)
}

// start is what k3s does at a start.
func (k k3s) start(at time.Time) {
	k.t.Helper()
	for _, name := range names {
		k.authority(name, at)
	}
	k.leaf(k.tls("client-admin.crt"), "client-ca", at)
	k.leaf(k.tls("serving-kube-apiserver.crt"), "server-ca", at)
	k.leaf(k.tls("kube-scheduler/kube-scheduler.crt"), "server-ca", at)
	os.Remove(filepath.Join(k.dir, "agent", "client-kubelet.crt"))
	k.leaf(filepath.Join(k.dir, "agent", "client-kubelet.crt"), "client-ca", at)
	_, regenerate := os.Stat(k.tls("dynamic-cert-regenerate"))
	if _, err := os.Stat(k.tls("dynamic-cert.json")); err != nil || regenerate == nil {
		os.Remove(k.tls("dynamic.crt"))
		k.leaf(k.tls("dynamic.crt"), "server-ca", at)
		raw, _ := os.ReadFile(k.tls("dynamic.crt"))
		os.Remove(k.tls("dynamic.crt"))
		secret, _ := json.Marshal(map[string]any{"data": map[string][]byte{"tls.crt": raw}})
		k.write(k.tls("dynamic-cert.json"), secret)
		os.Remove(k.tls("dynamic-cert-regenerate"))
	}
}

// wantValid verifies everything as a client would at the given time.
func (k k3s) wantValid(at time.Time) {
	k.t.Helper()
	for path, by := range map[string]string{
		k.tls("client-admin.crt"): "client-ca", k.tls("serving-kube-apiserver.crt"): "server-ca",
		k.tls("kube-scheduler/kube-scheduler.crt"): "server-ca", filepath.Join(k.dir, "agent", "client-kubelet.crt"): "client-ca",
	} {
		c, err := readCertificate(path)
		if err != nil {
			k.t.Errorf("%s: %v", path, err)
			continue
		}
		k.wantVerified(path, c, by, at)
	}
	c, err := serving(filepath.Join(k.dir, "server", "tls"))
	if err != nil {
		k.t.Fatal(err)
	}
	k.wantVerified("dynamic-cert.json", c, "server-ca", at)
}

func (k k3s) wantVerified(what string, c *x509.Certificate, by string, at time.Time) {
	k.t.Helper()
	ca, _ := k.load(by)
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	if _, err := c.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		k.t.Errorf("%s at %s: %v", what, at.Format(time.DateOnly), err)
	}
}

func (k k3s) prepare(first bool, db Datastore, at time.Time) Report {
	k.t.Helper()
	r, err := Prepare(k.dir, first, db, at)
	if err != nil {
		k.t.Fatal(err)
	}
	return r
}

// A cluster whose authorities were made by us: no clock of the future or the past
// makes one of its certificates not yet valid.
func TestAFreshClusterHasAuthoritiesWithoutDates(t *testing.T) {
	k := newK3s(t)
	if r := k.prepare(true, database{}, now); !slices.Equal(r.Made, names) || len(r.Renewed)+len(r.Removed) > 0 {
		t.Fatalf("%+v", r)
	}
	for _, name := range names {
		ca, key := k.load(name)
		if !ca.IsCA || !ca.NotBefore.Equal(always) || !ca.NotAfter.Equal(never) || !samePublic(key.Public(), ca.PublicKey) || ca.CheckSignatureFrom(ca) != nil {
			t.Errorf("%s: %s from %s to %s", name, ca.Subject, ca.NotBefore, ca.NotAfter)
		}
		for _, end := range []string{".crt", ".key"} {
			if fi, err := os.Stat(k.tls(name + end)); err != nil || fi.Mode().Perm() != 0o600 {
				t.Errorf("%s%s: %v %v", name, end, fi.Mode(), err)
			}
		}
	}
	k.start(now)
	for _, at := range []time.Time{now, now.Add(200 * 24 * time.Hour), now.Add(-20 * year), time.Unix(60, 0)} {
		k.wantValid(at)
		if r := k.prepare(false, database{}, at); !r.Empty() {
			t.Errorf("at %s there was something to do: %+v", at, r)
		}
	}
}

// After a jump k3s is started again, and everything is valid; who had trusted the
// authorities still does, and no key has changed.
func TestJumps(t *testing.T) {
	for _, tt := range []struct {
		name string
		made time.Time // when k3s made everything, without us
		at   time.Time
	}{
		{"a first start in 2040", now.Add(14 * year), now},
		{"a first start in 1970", time.Unix(0, 0), now},
		{"a year on the shelf", now.Add(-year), now},
		{"eleven years on the shelf: its authorities have ended", now.Add(-11 * year), now},
		{"an hour back", now.Add(time.Hour), now},
		{"nothing has happened", now.Add(-time.Hour), now},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := newK3s(t)
			k.start(tt.made)
			before := map[string]*x509.Certificate{}
			for _, name := range names {
				before[name], _ = k.load(name)
			}
			db := database{"/bootstrap/0123": nil, servingKey: nil, "/registry/pods/x": nil}
			r := k.prepare(false, db, tt.at)
			if !slices.Equal(r.Renewed, names) {
				t.Errorf("renewed %v", r.Renewed)
			}
			if _, ok := db["/bootstrap/0123"]; ok {
				t.Error("k3s would refuse to start: its copies are older than the files")
			}
			if _, ok := db[servingKey]; ok != (tt.made.Sub(tt.at).Abs() < 2*time.Hour && !tt.made.After(tt.at)) {
				t.Errorf("the copy of the serving certificate is there: %v", ok)
			}
			if _, ok := db["/registry/pods/x"]; !ok {
				t.Error("something else was deleted")
			}
			k.start(tt.at)
			k.wantValid(tt.at)
			for name, old := range before {
				ca, _ := k.load(name)
				if !slices.Equal(ca.RawSubject, old.RawSubject) || !slices.Equal(ca.SubjectKeyId, old.SubjectKeyId) || !samePublic(ca.PublicKey.(*ecdsa.PublicKey), old.PublicKey) {
					t.Errorf("%s is another authority now", name)
				}
			}
			if r := k.prepare(false, db, tt.at); !r.Empty() {
				t.Errorf("the second time there was something to do: %+v", r)
			}
			if why := Due(k.dir, tt.at); why != "" {
				t.Errorf("right after a start another one is due: %s", why)
			}
		})
	}
}

// A renewal that was cut short after any step is finished by the next one.
func TestCutShort(t *testing.T) {
	for cut := range 6 {
		k := newK3s(t)
		k.start(now.Add(year))
		old, err := datedAuthorities(filepath.Join(k.dir, "server", "tls"))
		if err != nil || len(old) != len(names) {
			t.Fatal(old, err)
		}
		for _, a := range old[:min(cut, len(old))] {
			if err := a.renew(); err != nil {
				t.Fatal(err)
			}
		}
		k.prepare(false, database{}, now)
		k.start(now)
		k.wantValid(now)
	}
}

func TestAuthoritiesOfSomebodyElseAreLeftAlone(t *testing.T) {
	k := newK3s(t)
	k.start(now.Add(-time.Hour))
	// The server authority is signed by a company's; the client one comes as a chain.
	root, rootKey := k.load("client-ca")
	key, raw := k.key()
	k.write(k.tls("server-ca.crt"), k.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "ours"}, NotBefore: now.Add(-year), NotAfter: now.Add(year), IsCA: true, BasicConstraintsValid: true},
		root, key.Public(), rootKey))
	k.write(k.tls("server-ca.key"), raw)
	chain, _ := os.ReadFile(k.tls("client-ca.crt"))
	k.write(k.tls("client-ca.crt"), slices.Concat(chain, chain))
	// And one is no certificate at all.
	k.write(k.tls("request-header-ca.crt"), []byte("?"))
	if r := k.prepare(false, database{}, now); !slices.Equal(r.Renewed, []string{"etcd/server-ca", "etcd/peer-ca"}) {
		t.Errorf("renewed %v", r.Renewed)
	}
}

func TestDue(t *testing.T) {
	k := newK3s(t)
	if why := Due(k.dir, now); why != "" {
		t.Errorf("nothing there, yet %q", why)
	}
	k.prepare(true, database{}, now)
	k.start(now)
	for after, due := range map[time.Duration]bool{0: false, -10 * year: false, year - early - time.Hour: false, year - early + time.Hour: true, year + time.Hour: true, 50 * year: true} {
		if why := Due(k.dir, now.Add(after)); (why != "") != due {
			t.Errorf("after %s: %q, want due %v", after, why, due)
		}
	}
	k.prepare(false, database{}, now.Add(year-early+time.Hour))
	k.start(now.Add(year - early + time.Hour)) // k3s makes new ones
	if why := Due(k.dir, now.Add(year-early+time.Hour)); why != "" {
		t.Errorf("started again, yet %q", why)
	}
}

// Files that an image brings are no certificates of the engine.
func TestDueIgnoresFilesOfImages(t *testing.T) {
	k := newK3s(t)
	k.prepare(true, database{}, now)
	k.start(now)
	k.leaf(filepath.Join(k.dir, "agent", "containerd", "snapshots", "7", "fs", "etc", "ssl", "old.crt"), "server-ca", now.Add(-2*year))
	if why := Due(k.dir, now); why != "" {
		t.Error(why)
	}
}

// worker is the engine of a worker of the cluster of a server.
type worker struct {
	server k3s
	dir    string
	starts int
}

func (w *worker) DataDir() string { return w.dir }
func (w *worker) LogFile() string { return "" }

// fetched are the certificates that k3s's agent fetches, and who signs them.
var fetched = map[string]string{"client-kubelet.crt": "client-ca", "serving-kubelet.crt": "server-ca", "client-kube-proxy.crt": "client-ca"}

// Restart is what k3s's agent does at a start.
func (w *worker) Restart(string) {
	w.starts++
	for name, by := range fetched {
		path := filepath.Join(w.dir, "agent", name)
		os.Remove(path)
		w.server.leaf(path, by, time.Now())
	}
}

// Two years of a worker that nobody starts again, day by day: its certificates are always valid, and its engine starts
// again only when they end soon. Its server is away for a week then.
func TestTwoYearsOfAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, day := time.Now(), 24*time.Hour
		w := &worker{server: newK3s(t), dir: t.TempDir()}
		w.server.prepare(true, database{}, begun)
		w.Restart("")
		away := begun.Add(year - early)
		may := func() bool { return time.Now().Before(away) || time.Now().After(away.Add(7*day)) }
		tracker := &health.Tracker{}
		r := NewRenewer(w, nil, may, tracker, slog.New(slog.DiscardHandler))
		m, err := lifecycle.New(slog.New(slog.DiscardHandler), lifecycle.Component{Name: "certificates", Run: r.Run})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx) }()
		for time.Since(begun) < 2*year {
			time.Sleep(day)
			synctest.Wait()
			for name, by := range fetched {
				c, err := readCertificate(filepath.Join(w.dir, "agent", name))
				if err != nil {
					t.Fatal(err)
				}
				w.server.wantVerified(name, c, by, time.Now())
			}
		}
		cancel()
		<-done
		if w.starts != 3 || len(tracker.Problems()) != 0 {
			t.Errorf("%d starts in two years, problems %v", w.starts, tracker.Problems())
		}
	})
}

func TestLeasesOfTheFuture(t *testing.T) {
	stored := func(kind string, renewed *time.Time) []byte {
		l := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
		if renewed != nil {
			at := metav1.NewMicroTime(*renewed)
			l.Spec.RenewTime = &at
		}
		raw, err := l.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: kind}, Raw: raw}
		out, err := u.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return append([]byte("k8s\x00"), out...)
	}
	later, soon, earlier := now.Add(time.Hour), now.Add(10*time.Second), now.Add(-time.Hour)
	for name, tt := range map[string]struct {
		value []byte
		want  bool
	}{
		"of the future": {stored("Lease", &later), true}, "by seconds": {stored("Lease", &soon), false}, "of the past": {stored("Lease", &earlier), false},
		"never renewed": {stored("Lease", nil), false}, "no lease": {stored("Secret", &later), false}, "JSON": {[]byte(`{"kind":"Lease"}`), false},
		"nothing": {nil, false}, "noise": {[]byte("k8s\x00\xff\xff\xff"), false},
	} {
		if got := leaseOfTheFuture(tt.value, now); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	k := newK3s(t)
	k.prepare(true, database{}, now)
	k.start(now)
	db := database{leaseKeys + "kube-node-lease/a": stored("Lease", &later), leaseKeys + "kube-node-lease/b": stored("Lease", &earlier)}
	if r := k.prepare(false, db, now); r.Leases != 1 || len(db) != 1 {
		t.Errorf("%+v, left %d", r, len(db))
	}
}

// A disk that is read-only is told with a cure, and nothing is half done.
func TestADiskThatCannotBeWritten(t *testing.T) {
	k := newK3s(t)
	k.start(now.Add(year))
	durable.Failpoint = func(_, path string) error { return &os.PathError{Op: "open", Path: path, Err: syscall.EROFS} }
	_, err := Prepare(k.dir, false, database{}, now)
	durable.Failpoint = nil
	if err == nil || !strings.Contains(err.Error(), "; look at the disk") {
		t.Errorf("error %v", err)
	}
	var pathErr *os.PathError
	if !errors.As(err, &pathErr) {
		t.Errorf("the cause is lost: %v", err)
	}
	k.prepare(false, database{}, now)
	k.start(now)
	k.wantValid(now)
}
