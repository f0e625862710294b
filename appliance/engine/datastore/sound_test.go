package datastore

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// object is a ConfigMap as the API server keeps it.
func object(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	data := map[string]string{}
	for i := range 100 {
		data[fmt.Sprintf("key-%03d", i)] = "the value of it"
	}
	kind := metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	cm := &corev1.ConfigMap{TypeMeta: kind, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}, Data: data}
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(cm, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// torn is a value of which a part is something else. (Where that is the text of one string and
// nothing else nobody can tell, and the API server reads it.)
func torn(value []byte) []byte {
	out := bytes.Clone(value)
	for i := len(out) / 3; i < 2*len(out)/3; i++ {
		out[i] = byte(0x86 ^ i*31)
	}
	return out
}

func TestSound(t *testing.T) {
	whole := object(t)
	ofCRD := []byte(`{"apiVersion":"example.org/v1","kind":"Thing"}`)
	unknown := bytes.Replace(whole, []byte("ConfigMap"), []byte("ConfigMop"), 1)
	for _, c := range []struct {
		what, key string
		value     []byte
		want      bool
	}{
		{"an object", "/registry/configmaps/default/x", whole, true},
		{"one that is torn", "/registry/configmaps/default/x", torn(whole), false},
		{"one that is cut off", "/registry/configmaps/default/x", whole[:len(whole)/2], false},
		{"one that is something else from its first byte", "/registry/configmaps/default/x", bytes.Repeat([]byte{0x86, 7}, 200), false},
		{"of a custom resource", "/registry/example.org/things/x", ofCRD, true},
		{"of a custom resource, torn", "/registry/example.org/things/x", torn(ofCRD), false},
		{"of a kind that is not known", "/registry/configmops/default/x", unknown, true},
		{"encrypted", "/registry/secrets/default/x", []byte("k8s:enc:aescbc:v1:key1:\x01\x02"), true},
		{"in CBOR", "/registry/example.org/things/x", []byte{0xd9, 0xd9, 0xf7, 0xa0}, true},
		{"empty", "/registry/health", nil, true},
		{"of the engine's own", "/bootstrap/abc", []byte{1, 2, 3}, true},
	} {
		if got := sound(c.key, c.value); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// Pages that hold only a part of a value have no structure that SQLite could look at.
func TestAnObjectThatIsTornIsTakenFromBefore(t *testing.T) {
	state := t.TempDir()
	path := Path(state)
	fill(t, path, 1, 3)
	db, err := Open(path, "rw")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	whole := object(t)
	put := func(id int, key string, created, deleted int, value []byte) {
		t.Helper()
		if _, err := db.Exec("INSERT INTO kine("+columns+") VALUES(?,?,?,?,0,?,0,?,'')", id, key, created, deleted, id-1, value); err != nil {
			t.Fatal(err)
		}
	}
	put(4, "/registry/configmaps/default/x", 1, 0, whole)
	put(5, "/registry/configmaps/default/gone", 1, 0, whole)
	put(6, "/registry/configmaps/default/gone", 0, 1, torn(whole))
	if err := Check(t.Context(), path); err != nil {
		t.Fatalf("a sound one, with a deletion whose value is torn: %v", err)
	}
	put(7, "/registry/configmaps/default/x", 0, 0, torn(whole))
	if err := Check(t.Context(), path); !errors.Is(err, ErrDamaged) || !strings.Contains(fmt.Sprint(err), "/registry/configmaps/default/x") {
		t.Fatalf("check: %v", err)
	}
	db.Close()
	if _, err := Recover(t.Context(), path, filepath.Join(state, "none")); err != nil {
		t.Fatal(err)
	}
	if err := Check(t.Context(), path); err != nil {
		t.Errorf("recovered: %v", err)
	}
	if db, err = Open(path, "rw"); err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var ids string
	if err := db.QueryRow("SELECT group_concat(id, ' ') FROM (SELECT id FROM kine WHERE name LIKE '/registry/configmaps/%' ORDER BY id)").Scan(&ids); err != nil || ids != "4 5 6" {
		t.Errorf("%q is there: %v", ids, err)
	}
}
