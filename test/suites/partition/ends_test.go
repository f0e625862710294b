package partition

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"rivulet/offload/policy"
	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// How pods end away is told at home as it was: of those that are deleted, of a Job's that is evicted or fails in a
// cut, and of one that is over the limit of its storage.
func TestHowPodsEnd(t *testing.T) {
	ctx := suite.Bounded(t, 9*time.Minute)
	a, b := begin(t, ctx)
	home, there := client(t, ctx, a), client(t, ctx, b)
	text := []string{`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"ends","labels":{"rivulet.dev/offload":"remote"}}}`}
	script := func(run string) string {
		return fmt.Sprintf(`"terminationGracePeriodSeconds":10,"containers":[{"name":"c","image":%q,"command":["/bin/sh","-c",%q]`, mainjob.Image, run)
	}
	const deleted = 40
	for i := range deleted {
		text = append(text, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"deleted-%d","namespace":"ends","labels":{"app":"deleted"}},"spec":{%s}]}}`,
			i, script(fmt.Sprintf("trap 'exit %d' TERM; sleep 100000 & wait", i%3))))
	}
	for name, run := range map[string]string{"evicted": "sleep 100000", "failed": "sleep 30; exit 7"} {
		text = append(text, fmt.Sprintf(`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":%[1]q,"namespace":"ends"},"spec":{"backoffLimit":0,
			"podFailurePolicy":{"rules":[{"action":"Ignore","onPodConditions":[{"type":"DisruptionTarget"}]},{"action":"FailJob","onExitCodes":{"operator":"NotIn","values":[0]}}]},
			"template":{"metadata":{"labels":{"app":%[1]q}},"spec":{"restartPolicy":"Never",%[2]s}]}}}}`, name, script(run)))
	}
	text = append(text, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"full","namespace":"ends","labels":{"app":"full"}},"spec":{%s,"volumeMounts":[{"name":"x","mountPath":"/x"}]}],
		"volumes":[{"name":"x","emptyDir":{"sizeLimit":"2Mi"}}]}}`, script("dd if=/dev/zero of=/x/f bs=1M count=8; sleep 100000")))
	defer func() { // a home that is made anew finds nothing of it
		kubectl(t, ctx, a, "delete namespace ends --wait=false")
		await.NoError(t, ctx, 2*time.Minute, "its twin is gone", func() error {
			left, err := there.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
			for i := range left.Items {
				if left.Items[i].Annotations[policy.HomeNamespaceAnnotation] == "ends" {
					err = errors.New(left.Items[i].Name)
				}
			}
			return err
		})
	}()
	last := lastStates(t, ctx, home)
	apply(t, ctx, a, `{"apiVersion":"v1","kind":"List","items":[`+strings.Join(text, ",")+`]}`)
	one := func(app string) corev1.Pod {
		t.Helper()
		var p corev1.Pod
		await.NoError(t, ctx, 2*time.Minute, app+" runs", func() error {
			pods, err := list(ctx, home, "ends", app)
			for i := range pods {
				if p = pods[i]; running(&p) {
					return nil
				}
			}
			return errors.Join(err, fmt.Errorf("%d pods", len(pods)))
		})
		return p
	}
	evicted, failed := one("evicted"), one("failed")

	cut(t)
	ns := twin(ctx, there, "ends")
	goes := func(app string) {
		t.Helper()
		await.NoError(t, ctx, 2*time.Minute, app+" is gone at the provider", func() error {
			pods, err := list(ctx, there, ns, app)
			switch {
			case err != nil:
				return err
			case len(pods) == 0:
				return nil
			case pods[0].DeletionTimestamp == nil:
				err = there.CoreV1().Pods(ns).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: pods[0].Name}})
			}
			return errors.Join(err, errors.New("it is there"))
		})
	}
	goes("evicted")
	await.NoError(t, ctx, 2*time.Minute, "the other fails by itself", func() error {
		jobs, err := there.BatchV1().Jobs(ns).List(ctx, metav1.ListOptions{})
		for i := range jobs.Items {
			if err == nil && jobs.Items[i].Annotations[policy.HomePodAnnotation] == failed.Name && hasFailed(&jobs.Items[i]) {
				return nil
			}
		}
		return errors.Join(err, errors.New("its Job has not"))
	})
	goes("failed")
	heal(t)
	peered(t, ctx)

	await.NoError(t, ctx, 2*time.Minute, "home knows how they ended", func() error {
		st, gone := last(evicted), last(failed)
		if st.Phase != corev1.PodFailed || !disrupted(st) || st.ContainerStatuses[0].State.Terminated != nil {
			return fmt.Errorf("evicted: %s %s %+v %+v", st.Phase, st.Message, st.Conditions, st.ContainerStatuses)
		}
		if end := gone.ContainerStatuses[0].State.Terminated; gone.Phase != corev1.PodFailed || disrupted(gone) || end == nil || end.ExitCode != 7 {
			return fmt.Errorf("failed: %s %s %+v %+v", gone.Phase, gone.Message, gone.Conditions, gone.ContainerStatuses)
		}
		job, err := home.BatchV1().Jobs("ends").Get(ctx, "failed", metav1.GetOptions{})
		if err == nil && !hasFailed(job) {
			err = errors.New("its Job has not failed")
		}
		return err
	})
	if again := one("evicted"); again.UID == evicted.UID {
		t.Error("it is the same pod")
	}
	if job, err := home.BatchV1().Jobs("ends").Get(ctx, "evicted", metav1.GetOptions{}); err != nil || hasFailed(job) {
		t.Errorf("the Job that ignores disruptions: %v", err)
	}

	var pods []corev1.Pod
	await.NoError(t, ctx, 2*time.Minute, "the others run", func() error {
		var err error
		pods, err = list(ctx, home, "ends", "deleted")
		for i := range pods {
			if !running(&pods[i]) {
				err = errors.New(pods[i].Name + " does not run")
			}
		}
		return err
	})
	kubectl(t, ctx, a, "delete pod -n ends -l app=deleted --wait=false")
	await.NoError(t, ctx, 2*time.Minute, "they are gone", func() error {
		left, err := list(ctx, home, "ends", "deleted")
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d", len(left))
		}
		return err
	})
	for i := range pods {
		p := &pods[i]
		var n int32
		_, _ = fmt.Sscanf(p.Name, "deleted-%d", &n)
		st := last(*p)
		if end := st.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != n%3 || (st.Phase == corev1.PodSucceeded) != (n%3 == 0) {
			t.Errorf("%s: %s %+v", p.Name, st.Phase, st.ContainerStatuses[0].State)
		}
	}

	await.NoError(t, ctx, 3*time.Minute, "the end of the pod that was too large is told", func() error {
		p, err := home.CoreV1().Pods("ends").Get(ctx, "full", metav1.GetOptions{})
		if err != nil || len(p.Status.ContainerStatuses) == 0 {
			return fmt.Errorf("%v", err)
		}
		end := p.Status.ContainerStatuses[0].LastTerminationState.Terminated
		if end == nil || end.Reason != "Evicted" || !strings.Contains(end.Message, "EmptyDir") {
			return fmt.Errorf("%+v", p.Status.ContainerStatuses[0])
		}
		if why := labtest.On(t, ctx, a, "rivulet", "why", "-n", "ends", "full"); !strings.Contains(why.Out, "sizeLimit") {
			return errors.New(why.Out + why.ErrOut)
		}
		return nil
	})
}

// lastStates watches home and tells the last state of a pod, gone or not.
func lastStates(t *testing.T, ctx context.Context, home kubernetes.Interface) func(corev1.Pod) corev1.PodStatus {
	t.Helper()
	var mu sync.Mutex
	all := map[string]corev1.PodStatus{}
	see := func(obj any) {
		if p, ok := obj.(*corev1.Pod); ok {
			mu.Lock()
			all[string(p.UID)] = *p.Status.DeepCopy()
			mu.Unlock()
		}
	}
	ctx, stop := context.WithCancel(ctx)
	t.Cleanup(stop)
	pods := informers.NewSharedInformerFactoryWithOptions(home, 0, informers.WithNamespace("ends")).Core().V1().Pods().Informer()
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) }, DeleteFunc: see}); err != nil {
		t.Fatal(err)
	}
	go pods.RunWithContext(ctx)
	return func(p corev1.Pod) corev1.PodStatus {
		mu.Lock()
		defer mu.Unlock()
		st := all[string(p.UID)]
		if len(st.ContainerStatuses) == 0 {
			st.ContainerStatuses = make([]corev1.ContainerStatus, 1)
		}
		return st
	}
}

func disrupted(st corev1.PodStatus) bool {
	for _, c := range st.Conditions {
		if c.Type == corev1.DisruptionTarget {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func hasFailed(job *batchv1.Job) bool {
	for _, c := range job.Status.Conditions {
		if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}
