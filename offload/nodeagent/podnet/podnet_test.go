package podnet

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestResults(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	whole := `{"cniArgs":[["K8S_POD_NAMESPACE","%s"],["K8S_POD_NAME","web-0"],["K8S_POD_UID","u"]],"result":{"interfaces":[{"name":"cni0"},{"name":"%s"},{"name":"eth0","mac":"0a:00:00:00:00:01","sandbox":"/x"}],"ips":[{"address":"10.42.0.%d/24"}]}}`
	write("old", fmt.Sprintf(whole, "lab", "vethold", 7))
	if err := os.Chtimes(filepath.Join(dir, "old"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	write("new", fmt.Sprintf(whole, "default", "vethnew", 7)) // has taken its address over
	write("good", fmt.Sprintf(whole, "lab", "vethgood", 8))
	write("gone", fmt.Sprintf(whole, "lab", "vethgone", 9))
	write("half", strings.TrimSuffix(fmt.Sprintf(whole, "lab", "vethhalf", 10), "}"))
	write("lo", `{"cniArgs":[["K8S_POD_NAMESPACE","lab"]],"result":{"interfaces":[{"name":"lo","sandbox":"/x"}],"ips":[{"address":"127.0.0.1/8"}]}}`)
	write("long", fmt.Sprintf(whole, "lab", "veth"+strings.Repeat("x", 40), 11))
	exists := func(veth string) bool { return veth != "vethgone" }
	got, err := Read(dir, exists)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Veth != "vethnew" || got[0].Namespace != "default" {
		t.Fatalf("%+v", got)
	}
	if p := got[1]; p.Veth != "vethgood" || p.Addr.String() != "10.42.0.8" || p.MAC != "0a:00:00:00:00:01" || p.Name != "web-0" || p.UID != "u" {
		t.Errorf("%+v", p)
	}
	if pods, err := Read(filepath.Join(dir, "none"), exists); pods != nil || err != nil {
		t.Errorf("before the first pod: %v %v", pods, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"cniArgs":[["K8S_POD_NAMESPACE","x"]],"result":{"interfaces":[{"name":"vethx"}],"ips":[{"address":"10.42.0.8/24"}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, ok := parse(text); ok && (!p.Addr.Is4() || p.Namespace == "" || p.Veth == "") {
			t.Errorf("%+v", p)
		}
	})
}
