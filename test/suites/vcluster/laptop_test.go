package vcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/testns"
)

// TestAStudentsLaptop: from a machine on the LAN kubectl works with a kubeconfig of a virtual cluster's user,
// which came by a link that works once, wakes it, and does not work when it is revoked. A backup is made of it
// while it is used.
func TestAStudentsLaptop(t *testing.T) {
	ctx := suite.Bounded(t, 10*time.Minute)
	a := suite.Devices["a"]
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "create", "sam", "--sleep", "15s")
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.On(t, ctx, a, "rivulet", "vcluster", "delete", "sam", "--yes")
	})
	room, home := testns.New(t), t.TempDir()
	if err := suite.Lab.Attach("laptop", int(room.NS), "10.77.0.77/24"); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env = append(os.Environ(), "HOME="+home, "KUBECACHEDIR="+filepath.Join(home, "cache"))
		var out strings.Builder
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, time.Second
		if err := room.Try(cmd.Start); err != nil { // a child is in the namespace of the thread that makes it
			return "", err
		}
		err := cmd.Wait()
		return out.String(), err
	}
	may := func(ok bool, want, file string, args ...string) {
		t.Helper()
		out, err := run(labtest.Binary(), append([]string{"kubectl", "--kubeconfig", file}, args...)...)
		if (err == nil) != ok || !strings.Contains(out, want) {
			t.Errorf("kubectl %v: %v: %s\nwant success: %t, with %q", args, err, out, ok, want)
		}
	}

	var links []struct{ Link, Pin string }
	if err := json.Unmarshal([]byte(labtest.Must(t, ctx, a, "rivulet", "vcluster", "kubeconfig", "sam", "--link", "--for", "8w", "-o", "json")), &links); err != nil || len(links) != 1 {
		t.Fatalf("%v %v", links, err)
	}
	student := filepath.Join(home, "sam.kubeconfig")
	curl := func() (string, error) {
		return run("curl", "-fsk", "--pinnedpubkey", "sha256//"+links[0].Pin, "-d", "", "-o", student, links[0].Link)
	}
	if out, err := run("curl", "-fsk", "--pinnedpubkey", "sha256//AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "-d", "", links[0].Link); err == nil {
		t.Errorf("with another pin: %s", out)
	}
	if out, err := curl(); err != nil {
		t.Fatalf("the link: %v: %s", err, out)
	}
	if _, err := curl(); err == nil {
		t.Error("the link works twice")
	}
	may(true, "created", student, "create", "configmap", "homework", "--from-literal=k=v")
	may(true, "homework", student, "get", "configmaps")
	await.NoError(t, ctx, 2*time.Minute, "it sleeps", func() error {
		var v view
		if err := json.Unmarshal([]byte(labtest.Must(t, ctx, a, "rivulet", "vcluster", "describe", "sam", "-o", "json")), &v); err != nil || v.State != "Asleep" {
			return fmt.Errorf("%+v %v", v, err)
		}
		return nil
	})
	begun := time.Now()
	may(true, "homework", student, "get", "configmaps")
	t.Logf("kubectl from the laptop wakes it, and has its answer after %s", time.Since(begun).Round(10*time.Millisecond))

	teacher := filepath.Join(home, "teacher.kubeconfig")
	if err := os.WriteFile(teacher, []byte(labtest.On(t, ctx, a, "rivulet", "vcluster", "kubeconfig", "sam", "--user", "teacher", "--role", "view").Out), 0o600); err != nil {
		t.Fatal(err)
	}
	may(true, "homework", teacher, "get", "configmaps")
	may(false, "forbidden", teacher, "delete", "configmap", "homework")

	labtest.Must(t, ctx, a, "rivulet", "backup", "/root/a.backup")
	may(true, "deleted", student, "delete", "configmap", "homework")
	labtest.Must(t, ctx, a, "rivulet", "kubeconfig", "revoke", "teacher", "--vcluster", "sam", "--yes")
	may(false, "revoked", teacher, "get", "configmaps")
	may(true, "kube-root-ca.crt", student, "get", "configmaps")
}
