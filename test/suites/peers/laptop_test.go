package peers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
	"rivulet/test/harness/testns"
)

// laptop is a machine on the LAN that is no device, with kubectl and nothing else.
type laptop struct {
	testns.Room
	home string
}

func newLaptop(t *testing.T, port, address string) laptop {
	t.Helper()
	l := laptop{testns.New(t), t.TempDir()}
	if err := suite.Lab.Attach(port, int(l.NS), address); err != nil {
		t.Fatal(err)
	}
	return l
}

// start begins kubectl there.
func (l laptop) start(cmd *exec.Cmd) error {
	cmd.Env = append(os.Environ(), "HOME="+l.home, "KUBECACHEDIR="+filepath.Join(l.home, "cache"))
	return l.Try(cmd.Start) // a child is in the namespace of the thread that makes it
}

func (l laptop) kubectl(ctx context.Context, file string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, labtest.Binary(), append([]string{"kubectl", "--kubeconfig", file}, args...)...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, time.Second
	if err := l.start(cmd); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return out.String(), err
}

// may runs kubectl that has to succeed with a text, or to fail with it.
func (l laptop) may(t *testing.T, ctx context.Context, ok bool, want, file string, args ...string) {
	t.Helper()
	if out, err := l.kubectl(ctx, file, args...); (err == nil) != ok || !strings.Contains(out, want) {
		t.Errorf("kubectl %v: %v: %s\nwant success: %t, with %q", args, err, out, ok, want)
	}
}

// kubeconfig has device a make one, carried to the laptop.
func (l laptop) kubeconfig(t *testing.T, ctx context.Context, args ...string) string {
	t.Helper()
	r := labtest.On(t, ctx, a, append([]string{"rivulet", "kubeconfig"}, args...)...)
	if r.Code != 0 {
		t.Fatalf("rivulet kubeconfig %v: %s", args, r.ErrOut)
	}
	f, err := os.CreateTemp(l.home, "kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(r.Out); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// From a laptop on the LAN kubectl works with a kubeconfig of the device and with no other,
// within its namespace and role, until it expires or is revoked: an open watch ends, too.
func TestKubectlFromALaptop(t *testing.T) {
	ctx := suite.Bounded(t, 10*time.Minute)
	if err := mainjob.ImportImage(ctx, suite.All()[:1]); err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{"lab", "other"} {
		labtest.Kubectl(t, ctx, a, "create", "namespace", ns)
		labtest.CleanUp(t, func(ctx context.Context) {
			labtest.On(t, ctx, a, "rivulet", "kubectl", "delete", "namespace", ns, "--wait=false")
		})
	}
	labtest.Kubectl(t, ctx, a, "-n", "lab", "run", "web", "--image", mainjob.Image, "--image-pull-policy=Never")
	labtest.Kubectl(t, ctx, a, "-n", "lab", "wait", "pod/web", "--for=condition=Ready", "--timeout=120s")
	l := newLaptop(t, "laptop", "10.77.0.77/24")

	owner := l.kubeconfig(t, ctx)
	anna := l.kubeconfig(t, ctx, "--user", "anna", "--namespace", "lab", "--role", "edit")
	l.may(t, ctx, true, "Ready", owner, "get", "nodes")
	l.may(t, ctx, true, "created", owner, "create", "configmap", "c", "-n", "other", "--from-literal=k=v")
	l.may(t, ctx, true, "web", anna, "get", "pods")
	l.may(t, ctx, true, "hello", anna, "exec", "web", "--", "/bin/busybox", "echo", "hello")
	l.may(t, ctx, false, "forbidden", anna, "get", "pods", "-n", "other")
	l.may(t, ctx, false, "forbidden", anna, "get", "nodes")
	l.may(t, ctx, false, "leave --as", anna, "get", "pods", "--as", "system:admin")

	// Another cluster's is a stranger's, though it is good there.
	r := labtest.On(t, ctx, b, "rivulet", "kubeconfig", "--server", "10.77.0.11")
	if r.Code != 0 {
		t.Fatal(r.ErrOut)
	}
	theirs := filepath.Join(l.home, "theirs")
	if err := os.WriteFile(theirs, []byte(r.Out), 0o600); err != nil {
		t.Fatal(err)
	}
	l.may(t, ctx, false, "certificate", theirs, "get", "nodes")
	l.may(t, ctx, false, "", theirs, "get", "nodes", "--insecure-skip-tls-verify")

	// Revoked with a watch open: that ends, and nothing begins.
	watch := exec.CommandContext(ctx, labtest.Binary(), "kubectl", "--kubeconfig", anna, "get", "pods", "--watch", "-o", "name")
	out, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.start(watch); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "pod/web" {
		t.Fatalf("the watch begins with %q", lines.Text())
	}
	if list := labtest.Must(t, ctx, a, "rivulet", "kubeconfig", "list"); !strings.Contains(list, "anna") || !strings.Contains(list, "active") {
		t.Errorf("listed: %s", list)
	}
	labtest.Must(t, ctx, a, "rivulet", "kubeconfig", "revoke", "anna", "--yes")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines.Scan() {
		}
		_ = watch.Wait()
	}() // kubectl may call it an error or an end
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the watch goes on after its user was revoked")
	}
	l.may(t, ctx, false, "revoked", anna, "get", "pods")
	await.NoError(t, ctx, time.Minute, "the revoked user's rights are gone", func() error {
		if have := labtest.Kubectl(t, ctx, a, "get", "rolebindings", "-A", "-l", "rivulet.dev/kubeconfig", "-o", "name"); have != "" {
			return fmt.Errorf("%s", have)
		}
		return nil
	})

	// One that expires, while the owner's goes on; it is so after a restart, too.
	brief := l.kubeconfig(t, ctx, "--user", "brief", "--for", "1m", "--role", "view")
	l.may(t, ctx, true, "web", brief, "get", "pods", "-n", "lab")
	await.NoError(t, ctx, 3*time.Minute, "it expires", func() error {
		if out, err := l.kubectl(ctx, brief, "get", "pods", "-n", "lab"); err == nil || !strings.Contains(out, "expired") {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
	if err := errors.Join(a.Kill(ctx, "supervisor"), a.Start(ctx)); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 3*time.Minute, "the owner's works after a restart", func() error {
		if out, err := l.kubectl(ctx, owner, "get", "nodes"); err != nil {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
	l.may(t, ctx, false, "revoked", anna, "get", "pods")
	l.may(t, ctx, false, "expired", brief, "get", "pods", "-n", "lab")
	labtest.Must(t, ctx, a, "rivulet", "kubeconfig", "revoke", "owner", "--yes")
}
