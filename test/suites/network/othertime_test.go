package network

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"database/sql"
	"encoding/json"
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/keyutil"

	"rivulet/appliance/engine/datastore"
	"rivulet/test/harness/lab"
)

// otherTime is a device's k3s folder, made to look as if everything in it had been
// minted at another time: what a jump of the clock leaves behind.
type otherTime struct {
	t                *testing.T
	dir              string // k3s
	caFrom, caTo     time.Time
	leafFrom, leafTo time.Time
	by               time.Duration // how far leases are moved
	authorities      []*x509.Certificate
	keys             []crypto.Signer
}

// apply changes files and datastore; no engine may run on the device.
func (o otherTime) apply(d *lab.Device) {
	o.t.Helper()
	o.dir = d.Path("/var/lib/rivulet/k3s")
	tls := filepath.Join(o.dir, "server", "tls")
	for _, name := range []string{"server-ca", "client-ca", "request-header-ca", "etcd/server-ca", "etcd/peer-ca"} {
		key, err := keyutil.PrivateKeyFromFile(filepath.Join(tls, name+".key"))
		o.ok(err)
		path := filepath.Join(tls, name+".crt")
		old := o.parse(o.read(path))
		old.NotBefore, old.NotAfter = o.caFrom, o.caTo
		signer := key.(crypto.Signer)
		raw := o.sign(old, old, signer.Public(), signer)
		o.write(path, raw)
		o.authorities, o.keys = append(o.authorities, o.parse(raw)), append(o.keys, signer)
	}
	for _, dir := range []string{tls, filepath.Join(o.dir, "agent")} {
		o.ok(filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".crt" || strings.Contains(path, "temporary-certs") {
				return err
			}
			if raw := o.read(path); !o.parse(raw).IsCA {
				o.write(path, o.again(raw))
			}
			return nil
		}))
	}
	path := filepath.Join(tls, "dynamic-cert.json")
	var secret map[string]any
	o.ok(json.Unmarshal(o.read(path), &secret))
	var inner corev1.Secret
	o.ok(json.Unmarshal(o.read(path), &inner))
	secret["data"].(map[string]any)["tls.crt"] = o.again(inner.Data["tls.crt"])
	raw, err := json.Marshal(secret)
	o.ok(err)
	o.write(path, raw)
	o.datastore(datastore.Path(d.Path("/var/lib/rivulet")))
}

// again signs a certificate anew, by its authority, with the other dates.
func (o otherTime) again(raw []byte) []byte {
	o.t.Helper()
	c := o.parse(raw)
	for i, ca := range o.authorities {
		if string(ca.SubjectKeyId) == string(c.AuthorityKeyId) {
			c.NotBefore, c.NotAfter = o.leafFrom, o.leafTo
			return o.sign(c, ca, c.PublicKey, o.keys[i])
		}
	}
	o.t.Fatalf("%s is signed by nobody", c.Subject)
	return nil
}

// datastore moves leases, and changes k3s's copy of its serving certificate.
func (o otherTime) datastore(path string) {
	o.t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path+"?mode=rw")
	o.ok(err)
	defer db.Close()
	rows, err := db.Query(`SELECT id, name, value FROM kine WHERE id IN (SELECT MAX(id) FROM kine GROUP BY name) AND deleted = 0
		AND (name LIKE '/registry/leases/%' OR name = '/registry/secrets/kube-system/k3s-serving')`)
	o.ok(err)
	changed := map[int64][]byte{}
	var moved []string
	for rows.Next() {
		var id int64
		var name string
		var value []byte
		o.ok(rows.Scan(&id, &name, &value))
		var u runtime.Unknown
		o.ok(u.Unmarshal(value[len("k8s\x00"):]))
		switch u.Kind {
		case "Lease":
			var l coordinationv1.Lease
			o.ok(l.Unmarshal(u.Raw))
			at := metav1.NewMicroTime(l.Spec.RenewTime.Add(o.by))
			l.Spec.RenewTime = &at
			u.Raw, err = l.Marshal()
		case "Secret":
			var s corev1.Secret
			o.ok(s.Unmarshal(u.Raw))
			s.Data["tls.crt"] = o.again(s.Data["tls.crt"])
			u.Raw, err = s.Marshal()
		}
		o.ok(err)
		raw, err := u.Marshal()
		o.ok(err)
		changed[id] = append([]byte("k8s\x00"), raw...)
		moved = append(moved, name)
	}
	o.ok(rows.Err())
	o.t.Logf("moved to another time: %v", moved)
	if !slices.Contains(moved, "/registry/leases/kube-node-lease/a") {
		o.t.Error("the node has no lease: is the datastore another now?")
	}
	for id, value := range changed {
		_, err := db.Exec("UPDATE kine SET value = ? WHERE id = ?", value, id)
		o.ok(err)
	}
}

func (o otherTime) sign(template, parent *x509.Certificate, public crypto.PublicKey, by crypto.Signer) []byte {
	o.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	o.ok(err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// stray puts a certificate into the engine's folder that k3s knows nothing of.
func (o otherTime) stray(d *lab.Device, path string, to time.Time) {
	o.t.Helper()
	tls := d.Path("/var/lib/rivulet/k3s/server/tls")
	key, err := keyutil.PrivateKeyFromFile(filepath.Join(tls, "client-ca.key"))
	o.ok(err)
	c := o.parse(o.read(filepath.Join(tls, "client-admin.crt")))
	c.NotAfter = to
	o.write(path, o.sign(c, o.parse(o.read(filepath.Join(tls, "client-ca.crt"))), c.PublicKey, key.(crypto.Signer)))
}

func (o otherTime) parse(raw []byte) *x509.Certificate {
	o.t.Helper()
	block, _ := pem.Decode(raw)
	if block == nil {
		o.t.Fatal("no certificate")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	o.ok(err)
	return c
}

func (o otherTime) read(path string) []byte {
	o.t.Helper()
	raw, err := os.ReadFile(path)
	o.ok(err)
	return raw
}

func (o otherTime) write(path string, raw []byte) {
	o.t.Helper()
	o.ok(os.WriteFile(path, raw, 0o600))
}

func (o otherTime) ok(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatal(err)
	}
}
