"""From the arguments of a session to its backends, and to the start of its stored plan or of the
planning."""

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from coexec import arguments
from coexec.engines.names import split_names
from coexec.errors import DegradedWarning, DeviceError, InfeasibleError, ModelError, PlanError
from coexec.exports import is_export
from coexec.ort import both
from coexec.selection.plan_files import devices_of_plan
from coexec.session.model_source import (
    for_ort_constructor,
    in_files,
    is_checked,
    portable,
    with_values,
)
from coexec.session.options import may_give_weights, options_for, warn_of, why_unplanned
from coexec.session.ort_backend import OrtArguments, OrtBackend, providers_of_ort
from coexec.session.reference import further_providers, with_reference, without_reference
from coexec.session.router import Router
from coexec.settings import AUTO, NONE, Settings, is_off


def model_and_settings(
    model: Any, words: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[Any, Settings, str | None]:
    """The model that a session opens, its settings, and why nothing is planned; None: it is.

    Args:
        model: as a program passes it.
        words: arguments with the names of `Settings`, except "values". None: the default.
        values: of inputs that become constants.

    Raises:
        CoexecError: an argument is invalid.
    """
    source = arguments.check_model(model)
    if is_off():
        words = {"planner": NONE}  # settings for plans have no meaning then
    keywords = {name: value for name, value in words.items() if value is not None}
    if isinstance(keywords.get("devices"), str):
        keywords["devices"] = split_names(keywords["devices"])
    settings = Settings(**keywords)
    unplanned = None
    if settings.planner == NONE:
        unplanned = "COEXEC=off in the environment" if is_off() else "planner='none'"
        unplanned += " switches planning off"
    if is_export(source):
        from coexec.exports.opening import model_of, resolve_export

        if unplanned is None:
            try:
                return *resolve_export(source, replace(settings, values=values)), None
            except DeviceError as error:
                if settings.strict:
                    raise
                unplanned = str(error)
                warn_without_plan(unplanned)
        source = model_of(source)
    if not values:
        return source, settings, unplanned
    if isinstance(source, str | os.PathLike) and in_files(source, values) is not None:
        return source, replace(settings, values=values), unplanned
    return with_values(source, values), settings, unplanned


def new_router(
    source: Any,
    settings: Settings,
    constants: Collection[str],
    options: Any,
    providers: Sequence[Any] | None,
    provider_options: Sequence[Any] | None,
    keywords: Mapping[str, Any],
    off: str | None = None,
) -> Router:
    """A router with its backends. `start` opens them.

    Args:
        constants: names of inputs that have become constants.
        options: ``onnxruntime.SessionOptions``; this and the arguments that follow it are those of
            ONNX Runtime's constructor.
        off: why nothing is planned whatever these arguments are; None: they decide.
    """
    providers = providers_of_ort(providers)
    disabled = keywords.get("disabled_optimizers")
    compared = None if off else with_reference(settings, providers, provider_options)
    settings, has_reference = compared or settings, compared is not None
    unplanned = off or why_unplanned(
        options, providers, settings.devices, disabled, has_reference=has_reference
    )
    plans = None
    if unplanned is None:
        from coexec.session.plan_backend import PlanBackend

        plans = PlanBackend(portable(source), settings)
        warn_of(options)
    if options is None and settings.devices is not None and not off:
        try:
            with devices_of_plan(settings):
                options = options_for(settings.devices)
        except DeviceError:
            if settings.strict or not settings.has_devices_of_plan:
                raise  # else `start` meets the same error, and the session begins without the plan
    if plans is not None and options is not None and options.enable_profiling:
        plans.record()
    model: Callable[[], Any] = partial(for_ort_constructor, source, is_checked(source, options))
    if settings.values:
        model = partial(in_files, source, settings.values)
    ort = OrtBackend(model, OrtArguments(options, providers, provider_options, keywords))
    router = Router(settings, constants, ort, plans, unplanned)
    if off:
        router.plan_nothing(off)
    return router


def start(router: Router) -> None:
    """Start the stored plan, or ONNX Runtime's own session and the planning.

    Called by the session's constructor itself: warnings name the line that calls the constructor.
    """
    plans, options = router.plans, router.ort.arguments.options
    if plans is None:
        router.ort.open()
        return
    now = options is None or not (options.optimized_model_filepath or may_give_weights(options))
    later = _plans_later(router.settings)
    try:
        quick = not later and plans.selector.has_cached_digest
        # The check takes some milliseconds. It is not needed for the default devices.
        needs_check = quick or router.settings != _with_defaults(router.settings)
        request = plans.selector.check() if needs_check else None
        if request is not None and quick and now and plans.selector.start_known((), request):
            return
    except ModelError as error:
        _refuse(router, error)
        return
    except DeviceError as error:
        if router.settings.strict or not router.settings.has_devices_of_plan:
            raise
        router.plan_nothing(str(error))
        router.ort.open()
        warn_without_plan(str(error))
        return
    plans.selector.check_request()
    router.ort.open()
    if router.settings.reference and not further_providers(router.ort.providers):
        # ONNX Runtime has left the provider out, and computes on CPU cores.
        router.use(without_reference(router.settings))
    if options is not None and (sizes := _overridden(router)):
        router.use(replace(router.settings, shapes={**sizes, **router.settings.shapes}))
    settings = router.settings
    if undecided := router.metadata.undecided_inputs:
        _refuse_plan(settings, undecided)
        return  # planned when the shapes of requests are known
    if later:
        plans.selector.start_later(())
        return
    try:
        plans.selector.start_now(())
    except InfeasibleError as error:  # a task runs on none of the named devices
        if settings.strict:
            raise
        router.plan_nothing(str(error))
        warn_without_plan(str(error))


def _plans_later(settings: Settings) -> bool:
    """Whether ONNX Runtime's own session answers first, and a plan takes over when it is ready."""
    if settings.background is not None:
        return settings.background
    return settings.planner == AUTO and settings.plan is None and settings.replan is None


def _refuse_plan(settings: Settings, undecided: Sequence[Any]) -> None:
    """Refuse a plan whose file does not give the sizes that the model leaves open.

    Raises:
        PlanError: there is such a plan.
    """
    if settings.plan is not None:
        listed = ", ".join(f"{arg.name!r} {arg.shape}" for arg in undecided)
        raise PlanError(
            f"{settings.plan.title} fixes no sizes of {listed}, which this model leaves open: give "
            f"them with shapes= if the plan is for this model, or make a new plan with coexec plan "
            f"MODEL --output new.plan.json"
        )


def _with_defaults(settings: Settings) -> Settings:
    """The settings with the default devices, planner and engines. The engine of a reference is
    tried in the background."""
    engine = settings.reference.partition(":")[0]
    own = {name: own for name, own in settings.engine_options.items() if name == engine}
    return Settings(
        shapes=settings.shapes,
        values=settings.values,
        cache=settings.cache,
        mode=settings.mode,
        reference=settings.reference,
        engine_options=own,
    )


def _refuse(router: Router, error: ModelError) -> None:
    """Raise ``error``, also with ONNX Runtime's own class, if ONNX Runtime refuses the model, too.
    Else plan nothing."""
    try:
        router.ort.open()
    except ModelError as refusal:
        cause = refusal.__cause__
        if not isinstance(cause, Exception):
            raise
        raise both(ModelError, type(cause))(str(error)) from cause
    router.unplanned = str(error)


def _overridden(router: Router) -> dict[str, tuple[int, ...]]:
    """Shapes of inputs that the model leaves dynamic and that the session options fix."""
    metadata = router.metadata
    return {
        arg.name: tuple(d for d in arg.shape if isinstance(d, int))
        for arg in metadata.signature.inputs
        if None in (metadata.declared_shapes.get(arg.name) or ())
        and arg.name not in metadata.dynamic_inputs
    }


def warn_without_plan(reason: str) -> None:
    """Warn that ONNX Runtime answers in place of the plan that the user has given.

    Called by functions that a session's constructor calls: the warning names the line that calls
    the constructor.
    """
    text = f"{reason}. ONNX Runtime's own session answers in its place; strict=True raises an error"
    warnings.warn(text, DegradedWarning, stacklevel=4)
