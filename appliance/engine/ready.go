package engine

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"rivulet/appliance/lifecycle"
	"rivulet/appliance/state/paths"
	"rivulet/fabric/changes"
)

// pollAPI is the interval of requests to a starting API server, which cannot notify yet.
const pollAPI = 200 * time.Millisecond

// longestPollAPI is its longest interval, on a slow machine.
const longestPollAPI = time.Second

// WaitAPI blocks until the API server is ready, or ctx ends.
func WaitAPI(ctx context.Context, kubeconfig string) error {
	var client kubernetes.Interface
	for {
		begun := time.Now()
		if client == nil {
			if cfg, err := RESTConfig(kubeconfig); err == nil {
				client, _ = kubernetes.NewForConfig(cfg)
			}
		}
		if client != nil {
			err := readyz(ctx, client)
			if err == nil {
				return nil
			}
			if _, answered := err.(apierrors.APIStatus); !answered {
				client = nil // perhaps the kubeconfig was that of an earlier start
			}
		}
		// On a slow machine most of the time stays with the API server; a request that timed out may not cost more.
		if !changes.Wait(ctx, min(max(pollAPI, 4*time.Since(begun)), longestPollAPI)) {
			return ctx.Err()
		}
	}
}

// RESTConfig reads the administrator's kubeconfig, with limits for controllers on the same machine.
func RESTConfig(kubeconfig string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	follow(cfg, paths.Server(filepath.Dir(kubeconfig), "tls"))
	cfg.QPS, cfg.Burst = 200, 400
	cfg.UserAgent = "rivulet"
	return cfg, nil
}

// follow sets the files of the client certificate whose copy is in k3s's kubeconfig: then client-go reads them again
// after k3s renewed it.
func follow(cfg *rest.Config, tls string) {
	cert, key := filepath.Join(tls, "client-admin.crt"), filepath.Join(tls, "client-admin.key")
	have, err := os.ReadFile(cert)
	if err != nil || !bytes.Equal(have, cfg.CertData) {
		return
	}
	cfg.CertFile, cfg.KeyFile, cfg.CertData, cfg.KeyData = cert, key, nil, nil
}

func readyz(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// WaitNode blocks until the node is registered, ready or not, or ctx ends.
func WaitNode(ctx context.Context, client kubernetes.Interface, name string) error {
	for {
		if _, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err == nil {
			return nil
		}
		if !changes.Wait(ctx, pollAPI) {
			return ctx.Err()
		}
	}
}

// RunNode follows the node until ctx ends, and calls ready with each change of it while it is Ready and pods can be
// created.
func (h *Handle) RunNode(ctx context.Context, stage *lifecycle.Stage, name string, ready func(*corev1.Node)) error {
	client := h.Client()
	stage.Waiting("for the cluster's controllers")
	if err := waitAccounts(ctx, client); err != nil {
		return err
	}
	stage.Waiting("for the kubelet to report")
	return watchNode(ctx, client, name, func(node *corev1.Node, is bool, message string) {
		if !is {
			stage.Waiting("node is not ready: %s", message)
			return
		}
		stage.Ready()
		ready(node)
	})
}

// waitAccounts blocks until pods can be created: every pod needs its namespace's default service account, which a
// controller creates some time after the API server is ready.
func waitAccounts(ctx context.Context, client kubernetes.Interface) error {
	for {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		if err == nil {
			return nil
		}
		if !changes.Wait(ctx, pollAPI) {
			return ctx.Err()
		}
	}
}

// watchNode follows the node's Ready condition until ctx ends: report is called with each change of the node and its
// message; node is nil while the API server does not answer.
func watchNode(ctx context.Context, client kubernetes.Interface, name string, report func(node *corev1.Node, ready bool, message string)) error {
	for ctx.Err() == nil {
		w, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String(),
		})
		if err != nil {
			report(nil, false, "the API server does not answer")
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		for ev := range w.ResultChan() {
			if node, ok := ev.Object.(*corev1.Node); ok {
				ready, message := NodeReady(node)
				report(node, ready, message)
			}
		}
		w.Stop()
	}
	return nil
}

// NodeReady returns a node's Ready condition and its message.
func NodeReady(node *corev1.Node) (ready bool, message string) {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, c.Message
		}
	}
	return false, "the kubelet has not reported yet"
}
