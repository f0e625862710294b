package power

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"rivulet/image/oci"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// The disk is so full that the kubelet makes room: it deletes images that no container uses. What a person
// pushed stays, as no registry has it.
func TestImagesOutliveAFullDisk(t *testing.T) {
	ctx, a, _ := need(t, 8*time.Minute)
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	const folder = "/var/lib/rivulet-images/"
	labtest.Must(t, ctx, a, "mkdir", "-p", folder)
	image := func(name string, more ...oci.File) (file string) {
		archive, err := oci.Archive(name, runtime.GOARCH, v1.Config{Entrypoint: []string{"/bin/busybox", "sleep", "3600"}, Env: []string{"NAME=" + name}},
			append(more, oci.File{Name: "bin/busybox", Content: busybox}))
		if err != nil {
			t.Fatal(err)
		}
		file = folder + strings.NewReplacer("/", "-", ":", "-").Replace(name) + ".tar"
		if err := os.WriteFile(a.Path(file), archive, 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const kept, passing, big = "example.org/kept:1", "example.org/passing:1", "example.org/big:1"
	noise := make([]byte, disk/12)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	labtest.Must(t, ctx, a, "rivulet", "image", "push", image(kept))
	labtest.Must(t, ctx, a, "rivulet", "ctr", "images", "import", image(passing))
	labtest.Must(t, ctx, a, "rivulet", "image", "push", image(big, oci.File{Name: "noise", Content: noise}))
	labtest.Must(t, ctx, a, "rm", "-r", folder)
	labtest.Must(t, ctx, a, "mkdir", folder)
	const fill = folder + "fill"
	t.Cleanup(func() {
		labtest.Must(t, suite.Bounded(t, time.Minute), a, "rm", "-rf", folder)
		labtest.Must(t, suite.Bounded(t, time.Minute), a, "rivulet", "image", "rm", "--force", "--yes", kept)
	})
	// Below 5 % the kubelet deletes what it can, if it has known the image for two minutes (MinAge of its
	// ImageGCPolicy); from 85 % on it does the same once in five minutes.
	labtest.Must(t, ctx, a, "sh", "-ec", `set -- $(df -B1 --output=size,avail /var/lib/rivulet | tail -n 1); fallocate -l $(($2 - $1 / 25)) `+fill)
	await.NoError(t, ctx, 6*time.Minute, "the kubelet has made room", func() error {
		out, err := a.Run(ctx, "rivulet", "image", "list")
		if err == nil && strings.Contains(out, passing) {
			err = errors.New(out)
		}
		return err
	})
	fullDiskIsExplained(t, ctx, a, kept, big)
	labtest.Must(t, ctx, a, "rm", fill)
	if out := labtest.Output(t, ctx, a, "rivulet", "image", "list"); !strings.Contains(out, kept) {
		t.Errorf("what was pushed is gone:\n%s", out)
	}
	// Pods are let in five minutes after the last look at a full disk, so the image is looked at itself.
	if out := labtest.Output(t, ctx, a, "rivulet", "ctr", "images", "check", "name=="+kept); !strings.Contains(out, "complete") || !strings.Contains(out, "true") {
		t.Errorf("it cannot be run: %s", out)
	}
}

// status and why name the pressure, and the cure that why has, run word by word, makes room: it removes what was pushed and
// nothing uses, and no more.
func fullDiskIsExplained(t *testing.T, ctx context.Context, a *lab.Device, used, unused string) {
	t.Helper()
	labtest.Must(t, ctx, a, "rivulet", "kubectl", "run", "late", "--image="+used)
	t.Cleanup(func() {
		labtest.Must(t, suite.Bounded(t, time.Minute), a, "rivulet", "kubectl", "delete", "pod", "late", "--now", "--ignore-not-found")
	})
	why := ""
	shows := func(words ...string) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, "why and status show "+words[0], func() error {
			why = labtest.Output(t, ctx, a, "rivulet", "why", "late")
			out := why + labtest.Output(t, ctx, a, "rivulet", "status")
			for _, w := range words {
				if !strings.Contains(out, w) {
					return fmt.Errorf("%q is not in\n%s", w, out)
				}
			}
			return nil
		})
	}
	shows("has DiskPressure: its disk is nearly full", "takes no new pods: DiskPressure", "ERROR   the disk is nearly full [disk-space]")
	cure := regexp.MustCompile(`: (rivulet image rm [^;]+); or: `).FindStringSubmatch(why)
	if cure == nil || !strings.Contains(cure[1], unused) || strings.Contains(cure[1], used) || strings.Contains(why, "kubectl taint") {
		t.Fatalf("no cure that removes %s alone:\n%s", unused, why)
	}
	labtest.Must(t, ctx, a, "sh", "-c", cure[1])
	shows("enough is free again, and the kubelet takes pods within 5 minutes", "takes no new pods: DiskPressure")
}
