package volumes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	storageutil "k8s.io/component-helpers/storage/volume"
	"pgregory.net/rapid"

	"rivulet/appliance/health"
	"rivulet/offload/consumer/volume"
	"rivulet/test/harness/await"
)

// The life of a volume, with the power gone at every step: in the end there is what
// there should be, and nothing else.
func TestPowerGoneAtEveryStep(t *testing.T) {
	for _, at := range []string{"", "folder made", "volume made", "volume grown", "volume marked deleted", "folder removed"} {
		t.Run("at "+at, func(t *testing.T) {
			w := newWorld(t)
			wait := w.run(at)
			again := func(here string) {
				if here == at {
					wait()
					w.run("")
				}
			}
			claim := w.claim("default", "db")
			again("folder made")
			again("volume made")
			v := w.bind(claim)
			if got := w.folders(); len(got) != 1 || filepath.Join(w.dir, got[0]) != v.Spec.Local.Path {
				t.Fatalf("folders %q, the volume has %q", got, v.Spec.Local.Path)
			}
			if fi, err := os.Stat(v.Spec.Local.Path); err != nil || fi.Mode().Perm() != 0o777 {
				t.Fatalf("%v %v", fi.Mode(), err)
			}
			data := w.write(v)

			larger := w.get(claim)
			larger.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Mi")
			w.updateClaim(larger)
			again("volume grown")
			await.NoError(w.t, w.t.Context(), 10*time.Second, "the claim grows", func() error {
				if q := w.get(claim).Status.Capacity[corev1.ResourceStorage]; q.String() != "2Mi" {
					return fmt.Errorf("capacity %s", q.String())
				}
				return nil
			})
			if _, err := os.Stat(data); err != nil {
				t.Fatal(err)
			}

			w.release(claim, v)
			again("volume marked deleted")
			again("folder removed")
			await.NoError(w.t, w.t.Context(), 10*time.Second, "volume and folder go", func() error {
				if len(w.volumes())+len(w.folders()) > 0 {
					return fmt.Errorf("volumes %v, folders %q", w.volumes(), w.folders())
				}
				return nil
			})
		})
	}
}

// A claim that is deleted while nobody looks leaves no folder; a folder that holds
// anything is nobody's to remove.
func TestNoFolderIsLeftBehind(t *testing.T) {
	w := newWorld(t)
	wait := w.run("folder made")
	claim := w.claim("default", "db")
	wait()
	if len(w.folders()) != 1 || len(w.volumes()) != 0 {
		t.Fatalf("stopped too late: folders %q, volumes %v", w.folders(), w.volumes())
	}
	w.delete(claim)
	for _, d := range []string{"default_old_pvc-1234", "notes"} {
		if err := os.MkdirAll(filepath.Join(w.dir, d, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(w.dir, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.run("")
	await.NoError(w.t, w.t.Context(), 10*time.Second, "the folder goes", func() error {
		if got := w.folders(); !slices.Equal(got, []string{"default_old_pvc-1234", "empty", "notes"}) {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
}

// A datastore that was recovered has the claim and not its volume: the folder is there, and gets its volume again. A claim
// that names another's volume as its own gets nothing, and nothing is made for a folder that is elsewhere.
func TestALostClaimGetsItsFolderAgain(t *testing.T) {
	w := newWorld(t)
	w.run("")
	claim := w.claim("default", "db")
	v := w.bind(claim)
	data := w.write(v)
	pvs := corev1.SchemeGroupVersion.WithResource("persistentvolumes")
	if err := w.client.Tracker().Delete(pvs, "", v.Name); err != nil {
		t.Fatal(err)
	}
	lost := func(claim *corev1.PersistentVolumeClaim) { claim.Status.Phase = corev1.ClaimLost }
	w.claim("default", "elsewhere", lost, func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = "pvc-" + string(claim.UID) })
	thief := w.claim("default", "thief", lost, func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = "pvc-stolen" })
	if err := os.Mkdir(filepath.Join(w.dir, folderName("default", thief.Name, "pvc-stolen")), 0o755); err != nil {
		t.Fatal(err)
	}
	claim = w.get(claim)
	lost(claim)
	w.updateClaim(claim)
	again := w.bind(claim)
	if again.Spec.Local.Path != v.Spec.Local.Path || again.Spec.ClaimRef.UID != claim.UID || again.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || len(w.volumes()) != 1 {
		t.Errorf("%+v; %d volumes", again.Spec, len(w.volumes()))
	}
	if _, err := os.Stat(data); err != nil {
		t.Error(err)
	}
}

// before is a moment of another history: what a volume has that was last seen before a recovery.
const before = "before.7"

// A datastore that was recovered has the volume and may lack its claim: that proves no deletion, and the data are kept.
func TestAMissingClaimIsNotADeletedOne(t *testing.T) {
	w := newWorld(t)
	w.run("")
	claim := w.claim("default", "db")
	v := w.bind(claim)
	data := w.write(v)
	w.delete(claim)
	v.Annotations[volume.ClaimedAnnotation], v.Status.Phase = before, corev1.VolumeReleased
	w.update(v)
	problem := func() string {
		for _, p := range w.health.Problems() {
			if p.Code == health.VolumeUnclaimed.Code && p.Subject == v.Name {
				return p.Text + " " + p.Cure
			}
		}
		return ""
	}
	await.True(t, 10*time.Second, "status shows it", func() bool {
		return strings.Contains(problem(), "default/db") && strings.Contains(problem(), "patch pv "+v.Name)
	})
	v, err := w.client.CoreV1().PersistentVolumes().Get(t.Context(), v.Name, metav1.GetOptions{})
	if err != nil || v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || v.DeletionTimestamp != nil {
		t.Fatalf("%+v %v", v, err)
	}
	if _, err := os.Stat(data); err != nil {
		t.Fatal(err)
	}
	v.Spec.ClaimRef.UID, v.Status.Phase = "", corev1.VolumeAvailable // the cure
	w.update(v)
	await.True(t, 10*time.Second, "and then no more", func() bool { return problem() == "" })
}

// What is seen after a recovery is deleted as before.
func TestAClaimThatIsDeletedAfterARecovery(t *testing.T) {
	w := newWorld(t)
	w.run("")
	claim := w.claim("default", "db")
	v := w.bind(claim)
	v.Annotations[volume.ClaimedAnnotation] = before
	w.update(v)
	await.True(t, 10*time.Second, "the claim is noted again", func() bool { return w.volumes()[0].Annotations[volume.ClaimedAnnotation] != before })
	w.release(claim, v)
	await.NoError(t, t.Context(), 10*time.Second, "the volume goes", func() error { return volumesGone(w) })
}

// A worker removes the folder of what the server has marked as deleted, and marks none itself.
func TestTheServerMarksVolumesOfWorkers(t *testing.T) {
	w := newWorld(t)
	w.run("")
	v := newVolume(newClaim("default", "db"), &storagev1.StorageClass{}, "pvc-1", "/var/lib/rivulet/storage/default_db_pvc-1", "other")
	v.Status.Phase, v.Annotations[volume.ClaimedAnnotation] = corev1.VolumeReleased, "first.0"
	if _, err := w.client.CoreV1().PersistentVolumes().Create(t.Context(), v, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, 10*time.Second, "it is marked", func() bool { return w.volumes()[0].DeletionTimestamp != nil })
	if got := w.volumes()[0].Finalizers; !slices.Contains(got, finalizer) {
		t.Errorf("finalizers %q: another node's folder is let go", got)
	}
}

func TestRetain(t *testing.T) {
	w := newWorld(t)
	w.run("")
	claim := w.claim("default", "db")
	v := w.bind(claim)
	w.event(reasonDone, "not bounded by its size")
	data := w.write(v)
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	w.update(v)
	w.release(claim, v)
	if err := w.client.CoreV1().PersistentVolumes().Delete(t.Context(), v.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await.NoError(w.t, w.t.Context(), 10*time.Second, "the volume goes", func() error {
		if n := len(w.volumes()); n > 0 {
			return fmt.Errorf("%d volumes", n)
		}
		return nil
	})
	if _, err := os.Stat(data); err != nil {
		t.Errorf("retained data: %v", err)
	}
}

// A volume that somebody wrote by hand makes us remove nothing that is not its own.
func TestRemovesOnlyItsOwn(t *testing.T) {
	outside := t.TempDir()
	for _, c := range []struct{ what, path string }{
		{"elsewhere", outside},
		{"a way out", "/storage/../../etc"},
		{"the folder of all volumes", "DIR"},
		{"the folder of all volumes, with a dot", "DIR/."},
		{"another volume's folder", "DIR/default_a_pvc-1"},
		{"below a folder", "DIR/default_a_pvc-1/x_forged"},
		{"a link out", "DIR/link_forged"},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t)
			keep := []string{filepath.Join(outside, "keep"), filepath.Join(w.dir, "default_a_pvc-1", "keep"), filepath.Join(w.dir, "default_a_pvc-1", "x_forged", "keep")}
			for _, k := range keep {
				if err := os.MkdirAll(k, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Symlink(outside, filepath.Join(w.dir, "link_forged")); err != nil {
				t.Fatal(err)
			}
			w.run("") // now: an empty folder that is no volume's is tidied away, between two steps of MkdirAll, too
			made := newClaim("default", "x")
			v := newVolume(made, &storagev1.StorageClass{}, "forged", "", "here")
			v.Spec.Local.Path = strings.ReplaceAll(c.path, "DIR", w.dir)
			v.Status.Phase = corev1.VolumeReleased
			v.Annotations[volume.ClaimedAnnotation] = "first.0"
			if _, err := w.client.CoreV1().PersistentVolumes().Create(t.Context(), v, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if c.what == "a link out" { // the link goes, what it leads to stays
				await.NoError(w.t, w.t.Context(), 10*time.Second, "the volume goes", func() error { return volumesGone(w) })
			} else {
				w.event(reasonNotPurged, "its files are not touched")
			}
			for _, k := range keep {
				if _, err := os.Stat(k); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func volumesGone(w *world) error {
	if n := len(w.volumes()); n > 0 {
		return fmt.Errorf("%d volumes", n)
	}
	return nil
}

// Links that a pod leaves in its volume lead nowhere when it is removed.
func TestLinksInsideAreNotFollowed(t *testing.T) {
	w := newWorld(t)
	w.run("")
	claim := w.claim("default", "db")
	v := w.bind(claim)
	outside := filepath.Join(t.TempDir(), "keep")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"abs": filepath.Dir(outside), "rel": "../../..", "file": outside} {
		if err := os.Symlink(to, filepath.Join(v.Spec.Local.Path, name)); err != nil {
			t.Fatal(err)
		}
	}
	w.release(claim, v)
	await.NoError(w.t, w.t.Context(), 10*time.Second, "the volume goes", func() error { return volumesGone(w) })
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	block, source, attributes := corev1.PersistentVolumeBlock, &corev1.TypedLocalObjectReference{Kind: "VolumeSnapshot", Name: "s"}, "fast"
	modes := func(m ...corev1.PersistentVolumeAccessMode) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes = m }
	}
	for _, c := range []struct {
		name, namespace, want string
		change                func(*corev1.PersistentVolumeClaim)
	}{
		{"many writers", "default", "use ReadWriteOnce", modes(corev1.ReadWriteMany)},
		{"many readers", "default", "use ReadWriteOnce", modes(corev1.ReadWriteOnce, corev1.ReadOnlyMany)},
		{"block", "default", "use Filesystem", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block }},
		{"snapshot", "default", "leave dataSource out", func(c *corev1.PersistentVolumeClaim) { c.Spec.DataSource = source }},
		{"selector", "default", "leave selector out", func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }},
		{"attributes", "default", "leave volumeAttributesClassName out", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = &attributes }},
		{"larger than the disk", "default", "ask for less", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("1Ei")
		}},
		{"on a node that is gone", "default", "chooses another", func(c *corev1.PersistentVolumeClaim) {
			c.Annotations[storageutil.AnnSelectedNode] = "gone"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.run("")
			claim := w.claim(c.namespace, "x", c.change)
			w.event(reasonFailed, c.want)
			if len(w.volumes())+len(w.folders()) > 0 {
				t.Errorf("made all the same: %v %q", w.volumes(), w.folders())
			}
			if n := w.get(claim).Annotations[storageutil.AnnSelectedNode]; n == "gone" {
				t.Error("the scheduler is not asked again")
			}
		})
	}
}

// What the disk could hold and cannot hold now is made, with a warning.
func TestLowDiskSpace(t *testing.T) {
	w := newWorld(t)
	w.run("")
	disk, err := folders{w.dir}.space()
	if err != nil || disk.Free >= disk.Size {
		t.Skipf("needs a disk that something is on: %d of %d bytes are free, %v", disk.Free, disk.Size, err)
	}
	w.bind(w.claim("default", "db", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = *resource.NewQuantity(disk.Size, resource.BinarySI)
	}))
	w.event(reasonSpace, "free space on the device")
}

// What is no concern of ours is left alone: found out by doing something else after it.
func TestLeavesOthersAlone(t *testing.T) {
	w := newWorld(t, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, Provisioner: "example.com/disk"})
	w.run("")
	theirs := "theirs"
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"nobody-uses-it-yet": func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, storageutil.AnnSelectedNode) },
		"on-another-cluster": func(c *corev1.PersistentVolumeClaim) { c.Annotations[storageutil.AnnSelectedNode] = "virtual" },
		"on-another-device":  func(c *corev1.PersistentVolumeClaim) { c.Annotations[storageutil.AnnSelectedNode] = "other" },
		"another-class":      func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &theirs },
		"another-provisioner": func(c *corev1.PersistentVolumeClaim) {
			c.Annotations[storageutil.AnnStorageProvisioner] = "x.example.com"
		},
	} {
		w.claim("default", name, change)
	}
	w.bind(w.claim("default", "zzz"))
	if n := len(w.volumes()); n != 1 {
		t.Errorf("%d volumes", n)
	}
}

// A worker writes volumes of its own disk, and nothing that is the cluster's.
func TestAWorkerLeavesTheRestToItsServer(t *testing.T) {
	theirs := class()
	theirs.Name = "theirs" // a second default, to which the first one yields
	w := newWorld(t, class(), theirs)
	w.worker = true
	w.run("")
	gone := w.claim("default", "aaa", func(c *corev1.PersistentVolumeClaim) { c.Annotations[storageutil.AnnSelectedNode] = "gone" })
	w.bind(w.claim("default", "zzz"))
	if n := w.get(gone).Annotations[storageutil.AnnSelectedNode]; n != "gone" {
		t.Errorf("it has changed the node of a claim to %q", n)
	}
	for _, a := range w.client.Actions() {
		if verb := a.GetVerb(); a.GetResource().Resource == "storageclasses" && verb != "list" && verb != "watch" && verb != "get" {
			t.Errorf("it does %s a StorageClass", verb)
		}
	}
}

func TestMissingFolderIsTold(t *testing.T) {
	w := newWorld(t)
	w.run("")
	claim := w.claim("default", "db")
	v := w.bind(claim)
	if err := os.Remove(v.Spec.Local.Path); err != nil {
		t.Fatal(err)
	}
	v.Labels = map[string]string{"touched": "yes"}
	w.update(v)
	await.NoError(w.t, w.t.Context(), 10*time.Second, "status shows it", func() error {
		for _, p := range w.health.Problems() {
			if p.Code == health.VolumeMissing.Code && p.Subject == v.Name && strings.HasSuffix(p.Cure, "default/db") {
				return nil
			}
		}
		return fmt.Errorf("%v", w.health.Problems())
	})
	w.release(claim, v)
	await.NoError(w.t, w.t.Context(), 10*time.Second, "and then no more", func() error {
		if p := w.health.Problems(); len(p) > 0 {
			return fmt.Errorf("%v", p)
		}
		return nil
	})
}

func TestClass(t *testing.T) {
	theirs := func(def string) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "theirs", Annotations: map[string]string{defaultAnnotation: def}}, Provisioner: "x"}
	}
	is := func(w *world, want string) {
		w.t.Helper()
		await.NoError(w.t, w.t.Context(), 10*time.Second, "ours is default: "+want, func() error {
			if got := w.class(ClassName).Annotations[defaultAnnotation]; got != want {
				return fmt.Errorf("%q", got)
			}
			return nil
		})
	}
	t.Run("gives way and comes back", func(t *testing.T) {
		w := newWorld(t)
		w.run("")
		is(w, "true")
		api := w.client.StorageV1().StorageClasses()
		if _, err := api.Create(t.Context(), theirs("true"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		is(w, "false")
		if err := api.Delete(t.Context(), "theirs", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		is(w, "true")
	})
	t.Run("a default that was there first", func(t *testing.T) {
		w := newWorld(t, theirs("true"))
		w.run("")
		is(w, "false")
	})
	t.Run("none by the user's wish", func(t *testing.T) {
		ours := class()
		ours.Annotations[defaultAnnotation] = "false"
		w := newWorld(t, ours, theirs("false"))
		w.run("")
		is(w, "false")
	})
	t.Run("where volumes may be", func(t *testing.T) {
		here := []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelHostname, Values: []string{"here"}}}}}
		old := class() // as earlier versions made it
		delete(old.Annotations, anywhereAnnotation)
		old.AllowedTopologies = here
		w := newWorld(t, old)
		w.run("")
		await.NoError(w.t, w.t.Context(), 10*time.Second, "on other clusters, too", func() error {
			if got := w.class(ClassName); got.AllowedTopologies != nil {
				return fmt.Errorf("%+v", got.AllowedTopologies)
			}
			return nil
		})
		ours := class() // the user wants them here
		ours.AllowedTopologies = here
		w = newWorld(t, ours)
		w.run("")
		if got := w.class(ClassName).AllowedTopologies; len(got) != 1 {
			t.Errorf("the user's own word is gone: %+v", got)
		}
	})
	t.Run("deleted and made again", func(t *testing.T) {
		w := newWorld(t)
		w.run("")
		is(w, "true")
		if err := w.client.StorageV1().StorageClasses().Delete(t.Context(), ClassName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		is(w, "true")
	})
	t.Run("somebody else's by our name", func(t *testing.T) {
		other := theirs("true")
		other.Name = ClassName
		w := newWorld(t, runtime.Object(other))
		w.run("")
		if got := w.class(ClassName); got.Provisioner != "x" || got.AllowedTopologies != nil {
			t.Errorf("%+v", got)
		}
	})
}

func TestFolderNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns := rapid.StringMatching(`[a-z0-9][a-z0-9-]{0,61}[a-z0-9]`).Draw(t, "namespace")
		claim := rapid.StringMatching(`[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?`).Draw(t, "claim")
		pv := "pvc-" + rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`).Draw(t, "uid")
		name := folderName(ns, claim, pv)
		f := folders{"/var/lib/rivulet/storage"}
		if len(name) > nameMax || filepath.Base(name) != name || name[strings.LastIndexByte(name, '_')+1:] != pv {
			t.Fatalf("%q", name)
		}
		got, err := f.nameOf(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pv}, Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: f.path(name)}},
		}})
		if err != nil || got != name {
			t.Fatalf("%q, %v; want %q", got, err, name)
		}
	})
}

func TestMountBelow(t *testing.T) {
	const info = "36 35 98:0 /a /mnt rw - ext4 /dev/x rw\n37 36 0:5 / /s/default_a\\040b/deep rw - tmpfs t rw\n38 36 0:5 / /s/default_abc rw - tmpfs t rw\n"
	for path, want := range map[string]string{
		"/s/default_a b": "/s/default_a b/deep", "/s/default_ab": "", "/s/default_abc": "/s/default_abc", "/mnt/x": "", "/mnt": "/mnt",
	} {
		if got, err := firstMountOf(strings.NewReader(info), below(path)); got != want || err != nil {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
