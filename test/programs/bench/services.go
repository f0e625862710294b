package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/offload/policy"
	"rivulet/test/programs/bench/internal/device"
	"rivulet/test/programs/bench/internal/figures"
)

const (
	serviceNamespace = "bench-services"
	serviceRounds    = 7
	servicePause     = 10 * time.Millisecond
)

// way is one kind of Service: created with a client, for a pod that is there, and
// asked at the address it has on the device that asks.
type way struct {
	what      string
	create    kubernetes.Interface
	namespace string
	app       string
	asks      where
	looks     string // namespace of the Service on the device that asks
}

// services: from the creation of a Service, whose pod runs already, to the first
// answer at its cluster IP on the device that asks, across the tunnel or not.
func (b *bench) services(ctx context.Context, places []where) (figs []figures.Samples, names []string, err error) {
	home, provider := places[0], places[1]
	defer func() { // what it made is in the way of what comes next
		for _, p := range places {
			if derr := p.client.CoreV1().Namespaces().Delete(ctx, serviceNamespace, metav1.DeleteOptions{}); derr != nil {
				err = errors.Join(err, fmt.Errorf("bench: %w", derr))
			}
		}
		err = errors.Join(err, noPods(ctx, home.client), noPods(ctx, provider.client))
	}()
	if _, err := home.device.Run(ctx, "rivulet", "ctr", "images", "import", "--label", "rivulet.dev/share=true", "/opt/rivulet/demo-web.tar"); err != nil {
		return nil, nil, err
	}
	for i, p := range places {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: serviceNamespace}}
		if i == 0 {
			ns.Labels = map[string]string{policy.NamespaceLabel: string(policy.Any)}
		}
		if _, err := p.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return nil, nil, fmt.Errorf("bench: %w", err)
		}
	}
	for _, p := range []struct {
		at       where
		app      string
		selector map[string]string
	}{
		{home, "near", map[string]string{corev1.LabelHostname: home.device.Name}},
		{home, "far", home.selector},
		{provider, "own", map[string]string{corev1.LabelHostname: provider.device.Name}},
	} {
		if err := serve(ctx, p.at, p.app, p.selector); err != nil {
			return nil, nil, err
		}
	}
	twins, err := provider.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
	if err != nil {
		return nil, nil, fmt.Errorf("bench: %w", err)
	}
	twin := ""
	for _, ns := range twins.Items {
		if ns.Annotations[policy.HomeNamespaceAnnotation] == serviceNamespace {
			twin = ns.Name
		}
	}
	if twin == "" {
		return nil, nil, errors.New("bench: the provider has no twin of " + serviceNamespace)
	}
	ways := []way{
		{"of a pod at home, asked at the provider", home.client, serviceNamespace, "near", provider, twin},
		{"of an away pod, asked at home", home.client, serviceNamespace, "far", home, serviceNamespace},
		{"of a pod of the provider, asked there", provider.client, serviceNamespace, "own", provider, serviceNamespace},
	}
	figs = make([]figures.Samples, len(ways))
	for _, w := range ways {
		names = append(names, w.what)
	}
	for round := range serviceRounds + 1 {
		for i, w := range ways {
			took, err := w.measure(ctx, fmt.Sprintf("%s-%d", w.app, round))
			if err != nil {
				return figs, names, err
			}
			if round > 0 { // the first warms up
				figs[i] = append(figs[i], seconds(took))
			}
		}
	}
	return figs, names, nil
}

// serve runs one pod and waits for it.
func serve(ctx context.Context, at where, app string, selector map[string]string) error {
	token, grace := false, int64(0)
	pods := at.client.CoreV1().Pods(serviceNamespace)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: app, Labels: map[string]string{"app": app}}, Spec: corev1.PodSpec{
		NodeSelector: selector, AutomountServiceAccountToken: &token, TerminationGracePeriodSeconds: &grace,
		Containers: []corev1.Container{{Name: "web", Image: device.Image, ImagePullPolicy: corev1.PullNever}}}}
	if at.spec != nil {
		at.spec(&p.Spec)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	made := false
	for {
		var err error
		if !made { // the namespace's account and the admission policy take a moment
			_, err = pods.Create(ctx, p, metav1.CreateOptions{})
			made = err == nil || apierrors.IsAlreadyExists(err)
		}
		now, gerr := pods.Get(ctx, app, metav1.GetOptions{})
		if gerr == nil && ready(now) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("bench: pod %s: %w; %s", app, errors.Join(err, gerr, ctx.Err()), waits(now))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// measure creates the Service and asks until it is answered.
func (w way) measure(ctx context.Context, name string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": w.app}, Ports: []corev1.ServicePort{{Port: 8080}}}}
	begun := time.Now()
	made, err := w.create.CoreV1().Services(w.namespace).Create(ctx, service, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	address := ""
	if w.asks.client == w.create {
		address = made.Spec.ClusterIP
	}
	client := w.asks.device.HTTP()
	var last error
	for {
		if address == "" {
			var there *corev1.Service
			if there, last = w.asks.client.CoreV1().Services(w.looks).Get(ctx, name, metav1.GetOptions{}); last == nil {
				address = there.Spec.ClusterIP
			}
		}
		if address != "" {
			if last = ask(ctx, client, "http://"+address+":8080/"); last == nil {
				return time.Since(begun), nil
			}
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("bench: Service %s %s: %w", name, w.what, errors.Join(last, ctx.Err()))
		case <-time.After(servicePause):
		}
	}
}

// ask gives up soon: what is sent before the rules are in place may get no answer at all.
func ask(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}
