// Package webhooks has a pod of the demo's image serve webhooks and an API service (test/programs/web), and a cluster call them. Objects are in
// namespace default; ConfigMaps labelled hooked are what webhooks of either kind are called for, with failurePolicy Fail.
package webhooks

import (
	"k8s.io/client-go/util/cert"

	"rivulet/test/harness/mainjob"
)

// Name is of the pod's application, its Service, and what leads to it; Port is the pod's.
const (
	Name = "hooks"
	Port = 8443
)

type object = map[string]any

// TLS is the certificate of the Service, and its key, PEM; it is its own authority.
type TLS struct{ Cert, Key []byte }

// NewTLS makes one.
func NewTLS() (TLS, error) {
	crt, key, err := cert.GenerateSelfSignedCertKey(Name+".default.svc", nil, nil)
	return TLS{crt, key}, err
}

// Server is a Deployment of one pod that serves.
func (c TLS) Server() []any {
	labels := object{"app": Name}
	return []any{
		object{"apiVersion": "v1", "kind": "Secret", "metadata": object{"name": Name}, "type": "kubernetes.io/tls", "data": object{"tls.crt": c.Cert, "tls.key": c.Key}},
		object{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": Name}, "spec": object{"selector": object{"matchLabels": labels}, "template": object{"metadata": object{"labels": labels}, "spec": object{
			"terminationGracePeriodSeconds": 1, "volumes": []any{object{"name": "tls", "secret": object{"secretName": Name}}},
			"containers": []any{object{"name": "web", "image": mainjob.Image, "command": []string{"/bin/web", "hooks", "/tls"}, "volumeMounts": []any{object{"name": "tls", "mountPath": "/tls"}},
				"readinessProbe": object{"tcpSocket": object{"port": Port}, "periodSeconds": 1}}}}}}},
	}
}

// Service leads to the pods of Server, or to hand-made endpoints.
func Service(selects bool) any {
	spec := object{"ports": []any{object{"name": "https", "port": 443, "targetPort": Port}}}
	if selects {
		spec["selector"] = object{"app": Name}
	}
	return object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": Name}, "spec": spec}
}

// Calls have a cluster call the Service, or for webhooks a URL, if there is one.
func (c TLS) Calls(url string) []any {
	hook := func(kind, path string) any {
		client := object{"caBundle": c.Cert, "service": object{"namespace": "default", "name": Name, "path": path}}
		if url != "" {
			client = object{"caBundle": c.Cert, "url": url}
		}
		return object{"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": object{"name": Name}, "webhooks": []any{object{
			"name": "configmaps.web.example", "clientConfig": client, "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": []string{"v1"},
			"objectSelector": object{"matchLabels": object{"hooked": ""}}, "rules": []any{object{"operations": []string{"CREATE"}, "apiGroups": []string{""}, "apiVersions": []string{"v1"}, "resources": []string{"configmaps"}}}}}}
	}
	return []any{
		hook("ValidatingWebhookConfiguration", "/validate"), hook("MutatingWebhookConfiguration", "/mutate"),
		object{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": object{"name": "v1.web.example"}, "spec": object{
			"group": "web.example", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10, "caBundle": c.Cert, "service": object{"namespace": "default", "name": Name}}},
	}
}

// ConfigMap is one that webhooks are called for.
func ConfigMap(name string) any {
	return object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": name, "labels": object{"hooked": ""}}}
}
