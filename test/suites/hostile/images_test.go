package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
	"rivulet/test/suites/hostile/attacker"
)

// shop is an attacker's registry on the LAN, which notes what it is asked for.
type shop struct {
	mu    sync.Mutex
	asked []*http.Request
}

// has reports whether a request for a repository came, with credentials or without.
func (s *shop) has(repository string, login bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.asked {
		if _, _, basic := r.BasicAuth(); strings.Contains(r.URL.Path, "/"+repository+"/") && basic == login {
			return true
		}
	}
	return false
}

// open sells the demo's image, with EVIL in its environment, in each of the repositories.
func open(t *testing.T, a *attacker.Attacker, port int, repositories ...string) *shop {
	t.Helper()
	s := &shop{}
	inner := registry.New()
	l, err := a.Listen(port)
	if err != nil {
		t.Fatal(err)
	}
	outside := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked = append(s.asked, r)
		s.mu.Unlock()
		inner.ServeHTTP(w, r)
	}))
	outside.Listener.Close()
	outside.Listener = l
	outside.Start()
	t.Cleanup(outside.Close)
	back := httptest.NewServer(inner)
	t.Cleanup(back.Close)

	tag, err := name.NewTag(mainjob.Image)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(filepath.Join(filepath.Dir(labtest.Binary()), "demo-web.tar"), &tag)
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config := file.Config
	config.Env = append(config.Env, "EVIL=yes")
	if img, err = mutate.Config(img, config); err != nil {
		t.Fatal(err)
	}
	for _, repository := range repositories {
		ref, err := name.NewTag(strings.TrimPrefix(back.URL, "http://") + "/" + repository + ":1")
		if err == nil {
			err = remote.Write(ref, img)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// with is a pod of an image.
func with(called, image string, policy corev1.PullPolicy) *corev1.Pod {
	p := pod(called)
	p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = image, policy
	return p
}

// missed waits until a pod is known to lack its image.
func missed(t *testing.T, ctx context.Context, c kubernetes.Interface, twin, called string) {
	t.Helper()
	await.NoError(t, ctx, 2*time.Minute, "pod "+called+" has no image", func() error {
		got, err := c.CoreV1().Pods(twin).Get(ctx, called, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, s := range got.Status.ContainerStatuses {
			if s.State.Running != nil || s.ImageID != "" {
				t.Fatalf("%s has image %s", called, s.ImageID)
			}
			if w := s.State.Waiting; w != nil && strings.Contains(w.Reason, "Image") {
				return nil
			}
		}
		return fmt.Errorf("%v", got.Status.ContainerStatuses)
	})
}

// owners has the victim's owner run a pod of an image and returns its environment's EVIL.
func owners(t *testing.T, ctx context.Context, called, image string, policy corev1.PullPolicy) string {
	t.Helper()
	apply(t, ctx, with(called, image, policy))
	await.NoError(t, ctx, 2*time.Minute, "the owner's pod "+called+" runs", func() error {
		out, err := victim.Kubectl(ctx, "get", "pod", called, "-o", "jsonpath={.status.phase} {.status.containerStatuses[*].state.waiting}")
		if err == nil && !strings.HasPrefix(out, "Running") {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	return inside(t, ctx, "default", called, "echo $EVIL")
}

func apply(t *testing.T, ctx context.Context, p *corev1.Pod) {
	t.Helper()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	raw, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 2*time.Minute, "the owner makes pod "+p.Name, func() error {
		_, err := victim.Run(ctx, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", string(raw))
		return err
	})
	t.Cleanup(func() { removed(t, ctx, victim, p.Name) })
}

// configure writes the victim's configuration until the test ends.
func configure(t *testing.T, ctx context.Context, text string) {
	t.Helper()
	const file = "/etc/rivulet/config.yaml"
	labtest.Must(t, ctx, victim, "sh", "-c", `umask 077; mkdir -p /etc/rivulet; printf '%s' "$1" > /etc/rivulet/new && mv /etc/rivulet/new `+file, "sh", text)
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.Must(t, ctx, victim, "rm", "-f", file)
	})
}

// What the owner has imported is the owner's, until it is shared; a consumer that has a
// registry serve the same name does not replace it, and gets no credentials of the owner's.
func TestImagesOfTheOwner(t *testing.T) {
	const private, addr = "registry.example.org/private:1", "10.77.0.73"
	ctx := suite.Bounded(t, 8*time.Minute)
	p := consumer(t, ctx, "mallory", addr)
	s := open(t, p.Attacker, 5000, "private", "owned", "late")
	mirror := "registries:\n  mirrors: {registry.example.org: {endpoint: ['http://" + addr + ":5000']}}\n"

	ctr := func(args ...string) string {
		t.Helper()
		return labtest.Must(t, ctx, victim, append([]string{"rivulet", "ctr", "images"}, args...)...)
	}
	ctr("tag", mainjob.Image, private)
	ctr("label", private, "rivulet.dev/share=")
	digest := func() string {
		for line := range strings.Lines(ctr("ls")) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == private {
				return f[2]
			}
		}
		return ""
	}
	was := digest()
	if was == "" {
		t.Fatal("the owner's image is not there")
	}
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.On(t, ctx, victim, "rivulet", "ctr", "images", "rm", private)
	})
	twin := p.Twin(ctx, "lab")
	c := p.Kubernetes(ctx)
	make := func(want *corev1.Pod) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, "pod "+want.Name+" is made", func() error {
			_, err := c.CoreV1().Pods(twin).Create(ctx, want, metav1.CreateOptions{})
			return err
		})
	}
	make(with("never", private, corev1.PullNever))
	make(with("absent", private, corev1.PullIfNotPresent))
	missed(t, ctx, c, twin, "never")
	missed(t, ctx, c, twin, "absent")
	if evil := owners(t, ctx, "mine", private, corev1.PullIfNotPresent); evil != "" {
		t.Errorf("the owner's pod has EVIL=%s", evil)
	}

	// The owner has a mirror for that registry, and mallory serves the same name there.
	configure(t, ctx, mirror)
	if evil := owners(t, ctx, "fetched", "registry.example.org/owned:1", corev1.PullAlways); evil != "yes" {
		t.Errorf("the owner's pod has EVIL=%q: the mirror is not in force", evil)
	}
	run(t, ctx, c, twin, with("always", private, corev1.PullAlways))
	if evil := inside(t, ctx, twin, "always", "echo $EVIL"); evil != "yes" {
		t.Errorf("the tenant's pod has EVIL=%q, want what its registry has", evil)
	}
	if is := digest(); is != was {
		t.Errorf("the owner's image was %s, and is %s", was, is)
	}
	if evil := owners(t, ctx, "again", private, corev1.PullIfNotPresent); evil != "" {
		t.Errorf("the owner's pod has EVIL=%s: the image was replaced", evil)
	}

	// Credentials: pods from before come no further, and new ones are refused.
	make(with("early", "registry.example.org/early:1", corev1.PullAlways))
	missed(t, ctx, c, twin, "early")
	configure(t, ctx, mirror+"  configs: {'"+addr+":5000': {auth: {username: owner, password: secret}}}\n")
	await.NoError(t, ctx, 2*time.Minute, "a pod of the registry is refused", func() error {
		_, err := c.CoreV1().Pods(twin).Create(ctx, with("late", "registry.example.org/late:1", corev1.PullAlways), metav1.CreateOptions{})
		if err == nil {
			err = c.CoreV1().Pods(twin).Delete(ctx, "late", metav1.DeleteOptions{})
			return fmt.Errorf("it was made: %v", err)
		}
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			return err
		}
		return nil
	})
	_ = owners(t, ctx, "login", "registry.example.org/owned:1", corev1.PullAlways)
	for _, repository := range []string{"private", "early", "late"} {
		if s.has(repository, true) {
			t.Errorf("mallory's registry was told the owner's credentials for %s", repository)
		}
	}

	// Shared, it is there for others.
	ctr("label", private, "rivulet.dev/share=true")
	await.NoError(t, ctx, 2*time.Minute, "pod never runs", func() error {
		got, err := c.CoreV1().Pods(twin).Get(ctx, "never", metav1.GetOptions{})
		if err == nil && got.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("%v", got.Status.ContainerStatuses)
		}
		return err
	})
}

// A registry's public name that leads to the victim's LAN is not connected to for a consumer.
func TestAPublicNameOfAPrivateAddress(t *testing.T) {
	const addr = "10.77.0.74"
	ctx := suite.Bounded(t, 4*time.Minute)
	p := consumer(t, ctx, "mallory", addr)
	l, err := p.Attacker.Listen(443)
	if err != nil {
		t.Fatal(err)
	}
	met := make(chan string, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			met <- c.RemoteAddr().String()
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close() })
	labtest.Must(t, ctx, victim, "sh", "-c", "echo "+addr+" inside.example.org >>/etc/hosts")
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.Must(t, ctx, victim, "sh", "-c", "sed '/inside.example.org/d' /etc/hosts >/etc/hosts.new && cat /etc/hosts.new >/etc/hosts && rm /etc/hosts.new")
	})
	twin := p.Twin(ctx, "lab")
	c := p.Kubernetes(ctx)
	await.NoError(t, ctx, time.Minute, "a pod is made", func() error {
		_, err := c.CoreV1().Pods(twin).Create(ctx, with("blind", "inside.example.org/x:1", corev1.PullAlways), metav1.CreateOptions{})
		return err
	})
	missed(t, ctx, c, twin, "blind")
	select {
	case from := <-met:
		t.Errorf("%s connected for a tenant", from)
	default:
	}
	// For the owner it does.
	apply(t, ctx, with("seeing", "inside.example.org/x:1", corev1.PullAlways))
	select {
	case <-met:
	case <-time.After(time.Minute):
		t.Error("the owner's pull does not connect either: the test shows nothing")
	}
}
