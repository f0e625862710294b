package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
)

// Admission policies of users work as in Kubernetes: type errors are in the status of a validating one, and a mutating
// one changes objects of a custom resource, whose documents nothing else has needed.
func TestPoliciesOfUsers(t *testing.T) {
	ctx := need(t, 3*time.Minute)
	a := devices["a"]
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		for _, o := range []string{"validatingadmissionpolicy/e2e-types", "mutatingadmissionpolicybinding/e2e-colour", "mutatingadmissionpolicy/e2e-colour", "crd/things.e2e.example.org"} {
			if _, err := a.Kubectl(ctx, "delete", o, "--ignore-not-found"); err != nil {
				t.Error(err)
			}
		}
	}()
	apply(t, ctx, a, `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"e2e-types"},"spec":{
"matchConstraints":{"resourceRules":[{"apiGroups":["apps"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["deployments"]}]},
"validations":[{"expression":"object.spec.replicas > '1'"}]}}`,
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.e2e.example.org"},"spec":{"group":"e2e.example.org","scope":"Namespaced",
"names":{"plural":"things","singular":"thing","kind":"Thing"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object",
"properties":{"spec":{"type":"object","properties":{"size":{"type":"integer"},"colour":{"type":"string"}}}}}}}]}}`,
		`{"apiVersion":"admissionregistration.k8s.io/v1beta1","kind":"MutatingAdmissionPolicy","metadata":{"name":"e2e-colour"},"spec":{"failurePolicy":"Fail","reinvocationPolicy":"Never",
"matchConstraints":{"resourceRules":[{"apiGroups":["e2e.example.org"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["things"]}]},
"mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{spec: Object.spec{colour: 'red'}}"}}]}}`,
		`{"apiVersion":"admissionregistration.k8s.io/v1beta1","kind":"MutatingAdmissionPolicyBinding","metadata":{"name":"e2e-colour"},"spec":{"policyName":"e2e-colour"}}`)
	await.NoError(t, ctx, 0, "the status of the validating policy has the type error", func() error {
		out, err := a.Kubectl(ctx, "get", "validatingadmissionpolicy", "e2e-types", "-o", "jsonpath={.status.typeChecking.expressionWarnings[*].warning}")
		if err == nil && !strings.Contains(out, "no matching overload") {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	await.NoError(t, ctx, 0, "the mutating policy is in force", func() error {
		out, err := a.Run(ctx, "sh", "-c", `echo '{"apiVersion":"e2e.example.org/v1","kind":"Thing","metadata":{"generateName":"t-","namespace":"default"},"spec":{"size":1}}' | rivulet kubectl create -f - -o jsonpath={.spec.colour}`)
		if err == nil && strings.TrimSpace(out) != "red" {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
}
