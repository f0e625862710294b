package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/engine"
	"rivulet/appliance/health"
)

var manifestsOfK3s = Probe{Kind: health.ManifestsOfK3s, Title: "manifests made for k3s", Every: soon, Run: probeCarried}

const (
	k3sManifests   = "/var/lib/rancher/k3s/server/manifests"
	k3sProvisioner = "rancher.io/local-path"
	masterLabel    = "node-role.kubernetes.io/master"
	// named bounds how many objects of a kind are named.
	named = 5
)

// k3sOwn are the files that k3s itself writes to its folder of manifests.
var k3sOwn = []string{"ccm.yaml", "coredns.yaml", "local-storage.yaml", "metrics-server", "rolebindings.yaml", "runtimes.yaml", "traefik.yaml"}

// finding is the result for one kind, with its cure.
type finding struct{ text, cure string }

// probeCarried finds objects written for k3s that wait for something that does not exist here, and manifest files that
// were not applied.
func probeCarried(ctx context.Context, e *Env) Result {
	client, err := e.API()
	if err != nil {
		return e.unasked("the API server cannot be asked", err)
	}
	folder := filepath.Join(engine.DataDir(e.State), "server", "manifests")
	var found []finding
	if unread := e.unreadManifests(); len(unread) > 0 {
		found = append(found, finding{"nobody reads " + some(unread), "move what is yours to " + folder})
	}
	for _, look := range []func(context.Context, kubernetes.Interface) (finding, error){e.failedManifests, rancherClaims, masterPods} {
		f, err := look(ctx, client)
		if err != nil {
			return e.unasked("the API server cannot be asked", err)
		}
		if f.text != "" {
			found = append(found, f)
		}
	}
	if len(found) == 0 {
		return Passf("nothing waits for what there is not")
	}
	var texts, cures []string
	for _, f := range found {
		texts, cures = append(texts, f.text), append(cures, f.cure)
	}
	return Warnf(strings.Join(cures, "; "), "%s", strings.Join(texts, "; "))
}

// some names a few of many.
func some(names []string) string {
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > named {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:named], ", "), len(names)-named)
	}
	return strings.Join(names, ", ")
}

func (e *Env) unreadManifests() []string {
	return slices.DeleteFunc(e.glob(k3sManifests+"/*"), func(f string) bool { return slices.Contains(k3sOwn, filepath.Base(f)) })
}

// failedManifests are files in the folder of manifests that k3s's controller cannot apply. It emits an event every 15
// s.
func (e *Env) failedManifests(ctx context.Context, client kubernetes.Interface) (finding, error) {
	events, err := client.CoreV1().Events(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Addon", ResourceVersion: "0"})
	if err != nil {
		return finding{}, err
	}
	last := map[string]corev1.Event{} // by Addon: a file that was applied since is no failure
	for _, v := range events.Items {
		if v.Reason == "ApplyingManifest" { // precedes success and failure, in the same second
			continue
		}
		if now, ok := last[v.InvolvedObject.Name]; !ok || at(v).After(at(now)) {
			last[v.InvolvedObject.Name] = v
		}
	}
	var texts []string
	kinds := false
	for _, v := range last {
		file := strings.Split(v.Message, `"`) // its path is the first that is quoted
		if v.Type == corev1.EventTypeWarning && e.Now().Sub(at(v)) < 2*time.Minute && (len(file) < 2 || e.exists(file[1])) {
			texts, kinds = append(texts, v.Message), kinds || unknownKind(v.Message)
		}
	}
	if len(texts) == 0 {
		return finding{}, nil
	}
	cure := "mend the file, or move it out of its folder"
	if kinds {
		cure += "; HelmChart, HelmChartConfig and Traefik's kinds are not there: helm template CHART | rivulet kubectl apply -f -, and Ingresses with ingress: true"
	}
	return finding{some(texts), cure}, nil
}

// unknownKind recognizes an error, of the API server or a client, about a kind that the API server does not have.
func unknownKind(text string) bool {
	return strings.Contains(text, "could not find the requested resource") || strings.Contains(text, "no matches for kind")
}

func at(v corev1.Event) time.Time {
	if v.Series != nil {
		return v.Series.LastObservedTime.Time
	}
	if !v.LastTimestamp.IsZero() {
		return v.LastTimestamp.Time
	}
	return v.EventTime.Time
}

// rancherClaims wait for the provisioner of k3s, which is not installed.
func rancherClaims(ctx context.Context, client kubernetes.Interface) (finding, error) {
	classes, err := client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return finding{}, err
	}
	theirs := map[string]bool{}
	for _, c := range classes.Items {
		theirs[c.Name] = c.Provisioner == k3sProvisioner
	}
	if !slices.ContainsFunc(classes.Items, func(c storagev1.StorageClass) bool { return theirs[c.Name] }) {
		return finding{}, nil
	}
	claims, err := client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return finding{}, err
	}
	var waiting []string
	for _, c := range claims.Items {
		if c.Status.Phase == corev1.ClaimPending && c.Spec.StorageClassName != nil && theirs[*c.Spec.StorageClassName] {
			waiting = append(waiting, c.Namespace+"/"+c.Name)
		}
	}
	if len(waiting) == 0 {
		return finding{}, nil
	}
	return finding{"claims wait for the provisioner " + k3sProvisioner + ", which k3s brings and Rivulet does not: " + some(waiting),
		"make the StorageClass with provisioner: rivulet.dev/local-path, or name the class local-path in the claim, which is there"}, nil
}

// masterPods select a label that Kubernetes has not set on nodes since 1.24.
func masterPods(ctx context.Context, client kubernetes.Interface) (finding, error) {
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Pending,spec.nodeName=", ResourceVersion: "0"})
	if err != nil {
		return finding{}, err
	}
	var waiting []string
	for _, p := range pods.Items {
		if _, selects := p.Spec.NodeSelector[masterLabel]; selects {
			waiting = append(waiting, p.Namespace+"/"+p.Name)
		}
	}
	if len(waiting) == 0 {
		return finding{}, nil
	}
	return finding{"pods select nodes by " + masterLabel + ", which no node has since Kubernetes 1.24: " + some(waiting),
		`select node-role.kubernetes.io/control-plane: "true" instead`}, nil
}
